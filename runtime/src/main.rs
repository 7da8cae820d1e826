//! `gym-runtime`: the door. What is behind it is described in the library's documentation.

use std::io::Write;

use anyhow::Context;
use clap::Parser;
use training_gym_core::record::{Cause, STOPPED};
use training_gym_core::spec::SecretRef;
use training_gym_runtime::pipeline::Workers;
use training_gym_runtime::sandbox::remote::Remote;
use training_gym_runtime::sandbox::{End, Launcher, Place, Supervisor};
use training_gym_runtime::settings::{Cli, RewardWorkerOptions, Role};
use training_gym_runtime::{
    check, convert, fetch, inspect, memory, pipeline, pretrain, sandbox, serve, settings, supervise, telemetry,
};

fn main() {
    let code = play(Cli::parse().role);
    // A thread that was left behind, or an engine's, may still be computing: libtorch's destructors
    // under it would crash the process, and its exit code would not be ours.
    leave(code)
}

fn play(role: Role) -> u8 {
    match &role {
        Role::Supervise { folder } => {
            // Its variables are those of who launched.
            sandbox::become_unreadable();
            return report(supervise::run(folder));
        }
        Role::Confine { plan } => return report(confine(plan)),
        _ => {}
    }
    telemetry::start();
    memory::keep_large_blocks();
    match role {
        Role::Train { store, run, reward_sockets, reward_address, reward_token_file } => {
            sandbox::become_unreadable();
            let remote = match reward_address.zip(reward_token_file) {
                Some((address, file)) => match settings::secret(&SecretRef::File(file)) {
                    Ok(token) => Some(Remote::new(address, &token)),
                    Err(error) => return report(Err(error.into())),
                },
                None => None,
            };
            let workers = match (reward_sockets, &remote) {
                (Some(sockets), _) => Workers::Sidecar(sockets),
                (None, Some(remote)) => Workers::Remote(remote.clone()),
                (None, None) => Workers::Here(Launcher::new(settings::this_program())),
            };
            let code = pipeline::run(&store, &run, workers);
            if let Some(remote) = remote.filter(|_| is_final(code)) {
                farewell(&remote);
            }
            code
        }
        Role::Fetch(options) => fetch::run(&options),
        Role::RewardWorker(options) => report(reward_worker(options)),
        Role::Serve { spec, ready } => {
            report(settings::serve_spec(&spec).map_err(anyhow::Error::from).and_then(|spec| {
                settings::use_threads(&spec.node);
                serve::run(spec, ready.as_deref()).map(|()| 0)
            }))
        }
        Role::Check { model, config, rows, raw, chat_template_kwargs, max_prompt_len, each } => {
            let outcome = match (model, config) {
                (_, Some(config)) => check::family(&config),
                (Some(model), None) => {
                    check::run(&check::Request { model, rows, raw, chat_template_kwargs, max_prompt_len, each })
                }
                (None, None) => unreachable!("the command line has one of them"),
            };
            report(outcome.map(|()| 0))
        }
        Role::Convert(options) => report(convert::run(&options).map(|()| 0).map_err(anyhow::Error::from)),
        Role::Inspect(options) => report(inspect::run(&options)),
        Role::Pretrain(options) => report(pretrain::run(&options).map(|_| 0).map_err(anyhow::Error::from)),
        Role::Supervise { .. } | Role::Confine { .. } => unreachable!("answered above"),
    }
}

fn reward_worker(options: RewardWorkerOptions) -> anyhow::Result<u8> {
    let RewardWorkerOptions { program_folder, sockets, listen, token_file, volume } = options;
    let place = match listen.zip(token_file) {
        Some((listen, file)) => {
            // Its token is no business of the worker's.
            sandbox::become_unreadable();
            Place::Port { listen, token: settings::secret(&SecretRef::File(file))? }
        }
        None => Place::Folder,
    };
    let apart = matches!(place, Place::Port { .. });
    let supervisor = Supervisor {
        launcher: Launcher::new(settings::this_program()),
        programs: program_folder,
        sockets: sockets.unwrap_or_else(settings::default_sockets),
        volume: volume.unwrap_or_else(settings::default_volume),
        place,
    };
    Ok(match sandbox::supervise(supervisor)? {
        // A pod of its own that ends well has no successor.
        End::Signal if apart => STOPPED,
        End::Signal | End::RunOver => 0,
    })
}

/// Whether no other trainer will come after one that ended so.
fn is_final(code: u8) -> bool {
    let causes = [Cause::InvalidInput, Cause::Reward, Cause::Numerics, Cause::OutOfMemory];
    code == 0 || causes.iter().any(|cause| cause.exit_code() == code)
}

/// Lets the reward pod end with the run. Where it cannot be told, it ends by itself later.
fn farewell(remote: &Remote) {
    let told = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(remote.farewell()).map_err(|error| error.to_string()));
    if let Err(why) = told {
        tracing::warn!("the reward worker {why}; it ends by itself in an hour");
    }
}

/// Becomes a reward worker; returns only when that fails.
fn confine(plan: &str) -> anyhow::Result<u8> {
    let plan = serde_json::from_str(plan).context("not a plan of gym-runtime's")?;
    Err(sandbox::confine(&plan).into())
}

fn report(outcome: anyhow::Result<u8>) -> u8 {
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            1
        }
    }
}

/// Ends the process at once, after what it has printed.
#[expect(unsafe_code, reason = "std ends a process only by way of its destructors")]
fn leave(code: u8) -> ! {
    let _ = std::io::stdout().flush();
    // SAFETY: takes an integer and does not return; what we had to write is written.
    unsafe { libc::_exit(i32::from(code)) }
}
