//! Lets the programs of this package find libtorch where they were linked with it.

fn main() {
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    if let Ok(folder) = std::env::var("LIBTORCH") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{folder}/lib");
    }
}
