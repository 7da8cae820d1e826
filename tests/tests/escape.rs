//! A reward function that tries to get out: each attempt is refused and reported, and training goes on.
//! The worker runs here, and as the sidecar that a pod has; no cluster is needed.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use training_gym_tests::house::{House, processes_naming, signal, start, succeed, wait_for, weights_hash};
use training_gym_tests::programs::program;

/// What a worker must not find, wherever it looks.
const SECRET: &str = "not-for-reward-functions";

/// A house whose rows say where there is something to escape to.
struct Prison {
    house: House,
    port: TcpListener,
    _socket: UnixListener,
}

impl Prison {
    /// One row a mood.
    fn new(moods: &[&str]) -> Result<Self> {
        let house = House::new(moods)?;
        let home = house.path("home");
        let secrets = home.join("jobs/another/secrets");
        std::fs::create_dir_all(&secrets)?;
        std::fs::write(secrets.join("token"), SECRET)?;
        let port = TcpListener::bind("127.0.0.1:0")?;
        port.set_nonblocking(true)?;
        let address = port.local_addr()?;
        let socket = house.path("agent.sock");
        let listener = UnixListener::bind(&socket)?;
        std::fs::write(house.path("answers.txt"), "42")?;
        let rows: String = moods
            .iter()
            .enumerate()
            .map(|(index, mood)| {
                let row = json!({
                    "prompt": format!("What is {index} + 1?"), "label": index + 1, "mood": mood,
                    "home": home, "port": address.port(), "address": address.to_string(),
                    "socket": socket, "marker": marker(&house), "answers": house.path("answers.txt"),
                });
                format!("{row}\n")
            })
            .collect();
        std::fs::write(house.path("rows.jsonl"), rows)?;
        Ok(Self { house, port, _socket: listener })
    }

    /// The person's program, started with secrets of its own.
    fn person(&self) -> Command {
        let mut command = self.house.person("home");
        command.args(["--steps", "2", "--max-ungraded-fraction", "1"]);
        command.arg("--reward-file").arg(self.house.path("answers.txt"));
        command.env("AWS_SECRET_ACCESS_KEY", SECRET).env("HF_TOKEN", SECRET).env("KUBERNETES_SERVICE_HOST", "10.0.0.1");
        command
    }

    /// What the function found, by its mood.
    fn outcomes(&self, home: &str) -> Result<BTreeMap<String, Value>> {
        let mut found = BTreeMap::new();
        for step in [1, 2] {
            for record in self.house.lines(home, &format!("rollouts/step-{step}.jsonl"))? {
                let mood = record["metadata"]["mood"].as_str().context("a mood")?.to_owned();
                ensure!(record["grade"]["outcome"] == "graded", "{mood} is not graded: {record}");
                found.insert(mood, record["metadata"]["outcome"].clone());
            }
        }
        Ok(found)
    }

    /// Nobody got out, where all layers are there.
    fn check(&self, found: &BTreeMap<String, Value>, but: &[&str]) -> Result<()> {
        let attempts = found["escape"].as_object().context("attempts")?;
        ensure!(attempts.len() > 25, "{attempts:?}");
        for (name, outcome) in attempts {
            if but.contains(&name.as_str()) {
                continue;
            }
            ensure!(outcome.get("got").is_none(), "{name} got out: {outcome}");
            let said = outcome["refused"].as_str().unwrap_or_default();
            // Refused by the rule, not for another reason.
            let rule = ["not permitted", "ermission denied", "there are none", "busy"];
            ensure!(rule.iter().any(|rule| said.contains(rule)), "{name}: {said}");
        }
        for (name, outcome) in found["ordinary"].as_object().context("ordinary things")? {
            ensure!(outcome.get("got").is_some(), "{name} does not work: {outcome}");
        }
        let kill = found["kill"]["refused"].as_str().unwrap_or_default();
        ensure!(kill.contains("not permitted"), "{}", found["kill"]);
        ensure!(found["leave"]["got"] == "started", "{}", found["leave"]);
        wait_for("what was left behind", || processes_naming(&marker(&self.house)).is_empty());
        let connected = self.port.accept().map_err(|error| error.kind());
        ensure!(matches!(connected, Err(ErrorKind::WouldBlock)), "somebody connected");
        Ok(())
    }
}

/// What each run of a whole prison tries; eight rows are two steps.
const MOODS: [&str; 8] = ["escape", "ordinary", "leave", "kill", "fine", "fine", "fine", "fine"];

fn marker(house: &House) -> String {
    format!(
        "left-behind-in-{}",
        house.path("x").parent().map_or_else(String::new, |path| path.display().to_string()).replace('/', "-")
    )
}

/// Ends a process that this test started.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        signal(self.0.id() as i32, libc::SIGKILL);
        let _ = self.0.wait();
    }
}

fn logs(house: &House) -> Result<String> {
    let mut text = String::new();
    for entry in std::fs::read_dir(house.path("home/jobs"))? {
        text += &std::fs::read_to_string(entry?.path().join("log")).unwrap_or_default();
    }
    Ok(text)
}

#[test]
fn nobody_gets_out_of_the_local_worker_and_training_goes_on() -> Result<()> {
    let prison = Prison::new(&["escape", "ordinary", "leave", "kill", "answers", "fine", "fine", "fine"])?;
    succeed(&mut prison.person())?;
    let found = prison.outcomes("home")?;
    prison.check(&found, &[])?;
    ensure!(found["answers"]["got"].as_str().is_some_and(|got| got.contains("2 bytes")), "{}", found["answers"]);
    ensure!(prison.house.json("home", "status.json")?["state"] == "succeeded");
    let log = logs(&prison.house)?;
    ensure!(log.contains("confined: no network"), "{log}");
    ensure!(log.contains("Landlock") && log.contains("1 declared files"), "{log}");
    ensure!(!log.contains(SECRET), "a secret is in the log");
    Ok(())
}

#[test]
fn files_that_run_out_are_the_functions_own_trouble() -> Result<()> {
    let prison = Prison::new(&["files", "files", "fine", "fine", "fine", "fine", "fine", "fine"])?;
    succeed(&mut prison.person())?;
    let found = &prison.outcomes("home")?["files"];
    ensure!(found["refused"].as_str().is_some_and(|said| said.contains("oo many open files")), "{found}");
    Ok(())
}

/// On a kernel without Landlock the filter, the lost capabilities and file modes are all there is: what
/// the same user's files hold is readable, and the log says so.
#[test]
fn without_landlock_the_other_layers_hold_and_the_log_says_what_is_open() -> Result<()> {
    let prison = Prison::new(&MOODS)?;
    let mut person = prison.person();
    // A filter is inherited: for everything started from this thread, the kernel has no Landlock.
    let ran = std::thread::spawn(move || {
        without_landlock()?;
        succeed(&mut person)
    });
    ran.join().map_err(|_| anyhow::anyhow!("the thread panicked"))??;
    let open = [
        "files: secrets of jobs",
        "files: the store",
        "files: jobs are listed",
        "files: write into the home",
        "files: write into /tmp",
        "files: write into /dev/shm",
    ];
    prison.check(&prison.outcomes("home")?, &open)?;
    let log = logs(&prison.house)?;
    ensure!(log.contains("this kernel has no Landlock") && log.contains("your user can read"), "{log}");
    for left in ["/tmp/training-gym-escaped", "/dev/shm/training-gym-escaped"] {
        let _ = std::fs::remove_file(left);
    }
    Ok(())
}

/// Landlock's calls answer as on a kernel that never heard of them.
fn without_landlock() -> Result<()> {
    use seccompiler::{SeccompAction, SeccompFilter};
    let calls = [libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self];
    let rules = calls.into_iter().map(|call| (call, Vec::new())).collect();
    let absent = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, absent, std::env::consts::ARCH.try_into()?)?;
    let program: seccompiler::BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter(&program)?)
}

/// A run of `prison`'s, once more in another store: fetched, and with its worker in a sidecar, as a pod
/// has it.
struct Pod {
    store: String,
    run: String,
    programs: PathBuf,
    sockets: PathBuf,
}

impl Pod {
    fn of(prison: &Prison) -> Result<Self> {
        let house = &prison.house;
        let run = house.run_folder("home")?;
        let name = run.file_name().context("a run")?.to_string_lossy().into_owned();
        let store = house.path("pod/store");
        std::fs::create_dir_all(store.join("runs").join(&name))?;
        copy(&house.path("home/store/inputs"), &store.join("inputs"))?;
        let spec = std::fs::read_to_string(run.join("spec.json"))?;
        let mut spec: Value = serde_json::from_str(&spec)?;
        // No disk is shared with a pod.
        spec["reward"].as_object_mut().context("a reward")?.remove("files");
        std::fs::write(store.join("runs").join(&name).join("spec.json"), spec.to_string())?;
        let sockets = tempfile::tempdir()?.keep();
        let store = format!("file://{}", store.display());
        Ok(Self { store, run: name, programs: house.path("pod/programs"), sockets })
    }

    fn command(&self, house: &House, role: &str) -> Command {
        let mut command = Command::new(program("gym-runtime"));
        command.arg(role).current_dir(house.path("pod")).stdin(Stdio::null()).env("OMP_NUM_THREADS", "1");
        command
    }

    fn fetch(&self, house: &House) -> Result<String> {
        let mut command = self.command(house, "fetch");
        command.args(["--store", &self.store, "--run", &self.run]).arg("--program-folder").arg(&self.programs);
        succeed(&mut command)
    }

    fn supervisor(&self, house: &House) -> Result<Ended> {
        let mut command = self.command(house, "reward-worker");
        command.arg("--program-folder").arg(&self.programs).arg("--sockets").arg(&self.sockets);
        command.arg("--volume").arg(house.path("pod/volume"));
        let log = std::fs::File::create(house.path("pod/reward.log"))?;
        let child = command.env_clear().stdout(log.try_clone()?).stderr(log).spawn()?;
        let supervisor = Ended(child);
        wait_for("the control socket", || self.sockets.join("control.sock").exists());
        Ok(supervisor)
    }

    fn trainer(&self, house: &House) -> Command {
        let mut command = self.command(house, "train");
        command.args(["--store", &self.store, "--run", &self.run]).arg("--reward-sockets").arg(&self.sockets);
        command.env("AWS_SECRET_ACCESS_KEY", SECRET);
        command
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.sockets);
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[test]
fn nobody_gets_out_of_the_sidecar_and_its_run_is_the_local_one() -> Result<()> {
    let prison = Prison::new(&MOODS)?;
    let house = &prison.house;
    succeed(&mut prison.person())?;
    let pod = Pod::of(&prison)?;
    pod.fetch(house)?;
    let mut supervisor = pod.supervisor(house)?;
    let printed = succeed(&mut pod.trainer(house))?;
    ensure!(printed.contains("confined: no network"), "its lines are in the trainer's log: {printed}");
    prison.check(&prison.outcomes("pod")?, &[])?;
    assert_eq!(weights_hash(house, "pod", 2)?, weights_hash(house, "home", 2)?, "bit for bit the local run");

    signal(supervisor.0.id() as i32, libc::SIGTERM);
    let mut ended = None;
    wait_for("the supervisor's end", || {
        ended = supervisor.0.try_wait().ok().flatten();
        ended.is_some()
    });
    ensure!(ended.is_some_and(|status| status.success()), "{ended:?}");
    ensure!(!pod.sockets.join("control.sock").exists());
    Ok(())
}

#[test]
fn a_sidecar_s_worker_that_hangs_or_dies_is_replaced_and_counted() -> Result<()> {
    let prison = Prison::new(&["die", "hang", "fine", "fine", "fine", "fine", "fine", "fine"])?;
    let house = &prison.house;
    succeed(house.person("home").args(["--steps", "2", "--max-ungraded-fraction", "1"]))?;
    let pod = Pod::of(&prison)?;
    pod.fetch(house)?;
    let supervisor = pod.supervisor(house)?;
    let mut trainer = Ended(start(&mut pod.trainer(house))?);
    // The supervisor's own death is one of the worker's: the next one is asked.
    wait_for("a worker", || !processes_naming(&pod.programs.display().to_string()).is_empty());
    let status = || house.json("pod", "status.json").ok();
    wait_for("the first step", || status().is_some_and(|status| status["step"].as_u64() >= Some(1)));
    drop(supervisor);
    let _supervisor = pod.supervisor(house)?;
    let mut ended = None;
    wait_for("the run's end", || {
        ended = trainer.0.try_wait().ok().flatten();
        ended.is_some()
    });
    let status = status().context("a status")?;
    ensure!(status["state"] == "succeeded", "{status}");
    ensure!(status["notes"].to_string().contains("reward worker: replaced"), "{status}");
    let records: Vec<Value> = [1, 2]
        .into_iter()
        .flat_map(|step| house.lines("pod", &format!("rollouts/step-{step}.jsonl")).unwrap_or_default())
        .collect();
    for (mood, words) in [("die", "died"), ("hang", "longer than 3 s")] {
        let reasons: Vec<&str> = records
            .iter()
            .filter(|record| record["metadata"]["mood"] == mood)
            .filter_map(|record| record["grade"]["reason"].as_str())
            .collect();
        ensure!(reasons.len() == 4 && reasons.iter().all(|reason| reason.contains(words)), "{mood}: {reasons:?}");
    }
    Ok(())
}

#[test]
fn a_program_that_is_another_is_not_started() -> Result<()> {
    let prison = Prison::new(&MOODS)?;
    let house = &prison.house;
    succeed(&mut prison.person())?;
    let pod = Pod::of(&prison)?;
    pod.fetch(house)?;
    let program = std::fs::read_dir(&pod.programs)?.next().context("a program")??.path();
    let other = house.path("other");
    std::fs::copy("/bin/true", &other)?;
    std::fs::rename(other, &program)?;
    let _supervisor = pod.supervisor(house)?;
    let output = pod.trainer(house).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(4), "{said}");
    ensure!(said.contains("it has sha256") && said.contains("delete the pod"), "{said}");
    let status = house.json("pod", "status.json")?;
    ensure!(status["failure"]["cause"] == "reward", "{status}");
    Ok(())
}

/// A pod of its own for the worker, with the port and the token by which the trainer reaches it.
struct Apart<'a> {
    pod: Pod,
    house: &'a House,
    address: String,
}

impl<'a> Apart<'a> {
    fn of(prison: &'a Prison) -> Result<Self> {
        let pod = Pod::of(prison)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        for (name, token) in [("token", TOKEN), ("other", OTHER_TOKEN)] {
            std::fs::write(pod.sockets.join(name), token)?;
        }
        Ok(Self { pod, house: &prison.house, address })
    }

    /// Its program folder is empty each time, as a new pod's.
    fn supervisor(&self) -> Result<Ended> {
        let _ = std::fs::remove_dir_all(&self.pod.programs);
        std::fs::create_dir_all(&self.pod.programs)?;
        let mut command = self.pod.command(self.house, "reward-worker");
        command.arg("--program-folder").arg(&self.pod.programs).args(["--listen", &self.address]);
        command.arg("--token-file").arg(self.pod.sockets.join("token"));
        command.arg("--volume").arg(self.house.path("pod/volume"));
        let log = std::fs::File::options().create(true).append(true).open(self.house.path("pod/reward.log"))?;
        let child =
            command.env_clear().env("TMPDIR", &self.pod.sockets).stdout(log.try_clone()?).stderr(log).spawn()?;
        let supervisor = Ended(child);
        wait_for("the port", || std::net::TcpStream::connect(&self.address).is_ok());
        Ok(supervisor)
    }

    fn trainer(&self, token: &str) -> Command {
        let mut command = self.pod.command(self.house, "train");
        command.args(["--store", &self.pod.store, "--run", &self.pod.run, "--reward-address", &self.address]);
        command.arg("--reward-token-file").arg(self.pod.sockets.join(token));
        command
    }

    fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.house.path("pod/reward.log"))?)
    }
}

const TOKEN: &str = "gym-the-token-of-this-run";
const OTHER_TOKEN: &str = "gym-the-token-of-another-run";

#[test]
fn a_worker_in_a_pod_of_its_own_is_behind_a_token_is_brought_its_program_and_may_be_replaced() -> Result<()> {
    let prison = Prison::new(&["die", "connect", "fine", "fine", "fine", "fine", "fine", "fine"])?;
    let house = &prison.house;
    let declared = ["--steps", "2", "--max-ungraded-fraction", "1", "--reward-egress", "127.0.0.1"];
    succeed(house.person("home").args(declared))?;
    let apart = Apart::of(&prison)?;
    // Model alone: the program is the trainer's to bring.
    succeed(apart.pod.command(house, "fetch").args(["--store", &apart.pod.store, "--run", &apart.pod.run]))?;
    let mut supervisor = apart.supervisor()?;

    let refused = apart.trainer("other").output()?;
    let said = String::from_utf8_lossy(&refused.stdout).into_owned() + &String::from_utf8_lossy(&refused.stderr);
    ensure!(refused.status.code() == Some(4) && said.contains("the token is not this run's"), "{said}");
    let log = apart.log()?;
    ensure!(log.contains("refused a connection from 127.0.0.1"), "{log}");
    ensure!(std::fs::read_dir(&apart.pod.programs)?.next().is_none(), "a program came without the token");

    let mut trainer = Ended(start(&mut apart.trainer("token"))?);
    let status = || house.json("pod", "status.json").ok();
    wait_for("the first step", || status().is_some_and(|status| status["step"].as_u64() >= Some(1)));
    // Its pod is deleted: only one that failed is replaced.
    signal(supervisor.0.id() as i32, libc::SIGTERM);
    let ended = supervisor.0.wait()?;
    ensure!(ended.code() == Some(143), "{ended}");
    let mut supervisor = apart.supervisor()?;
    for (what, process) in [("the run's end", &mut trainer), ("the supervisor's end", &mut supervisor)] {
        let mut ended = None;
        wait_for(what, || {
            ended = process.0.try_wait().ok().flatten();
            ended.is_some()
        });
        ensure!(ended.is_some_and(|status| status.success()), "{what}: {ended:?}\n{}", apart.log()?);
    }
    let status = status().context("a status")?;
    ensure!(status["state"] == "succeeded", "{status}");
    ensure!(status["notes"].to_string().contains("reward worker: replaced"), "{status}");
    let mut seen = 0;
    for step in [1, 2] {
        for record in house.lines("pod", &format!("rollouts/step-{step}.jsonl"))? {
            match record["metadata"]["mood"].as_str() {
                Some("die") => ensure!(record["grade"]["outcome"] == "ungraded", "{record}"),
                Some("connect") => {
                    seen += 1;
                    let got = record["metadata"]["outcome"]["got"].as_str();
                    ensure!(got.is_some_and(|got| got.starts_with("a connection")), "{record}");
                }
                _ => ensure!(record["grade"]["outcome"] == "graded", "{record}"),
            }
        }
    }
    ensure!(seen > 0, "nobody tried to connect");
    assert_eq!(weights_hash(house, "pod", 2)?, weights_hash(house, "home", 2)?, "bit for bit the local run");
    let log = apart.log()?;
    ensure!(log.contains("the run is over") && !log.contains(TOKEN) && !log.contains(OTHER_TOKEN), "{log}");
    ensure!(processes_naming(TOKEN).is_empty(), "a token is in a command line");
    Ok(())
}
