//! Lets the programs of this package find libtorch where they were linked with it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // torch-sys's own word, whether it was told by LIBTORCH, LIBTORCH_LIB or LIBTORCH_USE_PYTORCH.
    if let Some(folder) = std::env::var_os("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{}", folder.display());
    }
}
