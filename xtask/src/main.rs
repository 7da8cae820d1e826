//! `cargo xtask`: what a person types in this repository.
//!
//! Each command first does the set-up that is missing. Nothing here needs more than Rust, a C++
//! compiler and Python 3 with pip.

mod arithmetic;
mod bench;
mod cluster;
mod commands;
mod environments;
mod image;
mod libtorch;
mod links;
mod prerequisites;
mod results;
mod servers;
mod shell;
mod smollm2;
mod summary;
mod trees;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  demo [-- ARGUMENTS]     set up, build, and run the main job: teach a small student arithmetic
                          (arguments go to examples/dapo_math_opd.rs, such as --json or --seed 2)
  test [golden] [FILTER]  set up, then run the tests; `golden` runs the reference suites alone
  setup                   only the set-up: libtorch, verified and cached outside the repository
  runtime                 set up, and build gym-runtime where programs of other crates find it
  smoke                   the demo's mechanics in a few steps
  bench [NAME] [--json]   the benchmarks, or one of head_memory, update_step, engine, tip, memory, peers; `peers`
                          (transformers beside ours; needs Python packages of several GB) takes
                          --model DIR, --dtype bf16|fp32, --threads N, --rounds N too
  results [--row NAME] [--seed N] [--page] [--minutes N]
                          measure what is missing of docs/results.md (tiny scale, an hour or more) and write it;
                          stop and start it at will
  demo-assets             make the demo's problems, tokenizer and models anew (many minutes)
  heavy                   suites that need Python environments of several GB
  stores [FILTER]         the store suites, on real S3 servers (SeaweedFS; Versity's gateway where Go is)
  image [--cuda]          build the image of the pods, without a daemon or a registry (Linux, root)
  cluster COMMAND         a real one-machine Kubernetes for the cluster suite: up, test, down, status,
                          env (Linux, root, Go; says so and passes elsewhere)
  trees                   assert which crates each side links, and that the documents' links lead somewhere
  deny                    licences, sources and bans, with a pinned cargo-deny
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &[][..]),
    };
    let outcome = match command {
        "demo" => commands::demo(rest),
        "test" => commands::test(rest),
        "setup" => commands::setup(),
        "runtime" => commands::runtime(),
        "smoke" => commands::smoke(),
        "results" => results::results(rest),
        "bench" => bench::bench(rest),
        "demo-assets" => commands::demo_assets(),
        "heavy" => commands::heavy(),
        "stores" => commands::stores(rest),
        "image" => image::image(rest),
        "cluster" => cluster::cluster(rest),
        "trees" => trees::check().and_then(|()| links::check()),
        "deny" => commands::deny(),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => {
            eprint!("error: no command `{other}`\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
