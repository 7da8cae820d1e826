//! `gym-runtime`: the door. What is behind it is described in the library's documentation.

use std::process::ExitCode;

use clap::Parser;
use training_gym_runtime::settings::{Cli, Role};
use training_gym_runtime::{
    check, convert, inspect, memory, pipeline, pretrain, serve, settings, supervise, telemetry,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Role::Supervise { folder } = &cli.role {
        return report(supervise::run(folder));
    }
    telemetry::start();
    memory::keep_large_blocks();
    match cli.role {
        Role::Train { store, run } => ExitCode::from(pipeline::run(&store, &run)),
        Role::Serve { spec, ready } => {
            report(settings::serve_spec(&spec).map_err(anyhow::Error::from).and_then(|spec| {
                settings::use_threads(&spec.node);
                serve::run(spec, ready.as_deref()).map(|()| 0)
            }))
        }
        Role::Check { model, rows, raw, chat_template_kwargs, max_prompt_len } => {
            let request = check::Request { model, rows, raw, chat_template_kwargs, max_prompt_len };
            report(check::run(&request).map(|()| 0))
        }
        Role::Convert(options) => report(convert::run(&options).map(|()| 0).map_err(anyhow::Error::from)),
        Role::Inspect(options) => report(inspect::run(&options)),
        Role::Pretrain(options) => report(pretrain::run(&options).map(|_| 0).map_err(anyhow::Error::from)),
        Role::Supervise { .. } => unreachable!("answered above"),
    }
}

fn report(outcome: anyhow::Result<u8>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
