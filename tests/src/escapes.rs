//! What a reward function might try, deliberately or because a model wrote it: each attempt says what it
//! got, or how it was refused.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Map, Value};

/// Variables a worker is started with, and no others.
pub const VARIABLES: [&str; 8] =
    ["HOME", "LANG", "PATH", "RUST_BACKTRACE", "TMPDIR", "TRAINING_GYM_ROLE", "TRAINING_GYM_SOCKET", "DECLARED"];

/// What a row of the dataset tells the function about its surroundings.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// The state folder.
    pub home: PathBuf,
    /// A port of this machine that somebody listens on.
    pub port: u16,
    /// A Unix socket that somebody listens on.
    pub socket: PathBuf,
}

impl Surroundings {
    /// From a sample's metadata.
    pub fn of(metadata: &Map<String, Value>) -> Option<Self> {
        let text = |name: &str| metadata.get(name)?.as_str();
        Some(Self {
            home: text("home")?.into(),
            port: metadata.get("port")?.as_u64()?.try_into().ok()?,
            socket: text("socket")?.into(),
        })
    }
}

type Attempt = io::Result<String>;

/// Tries everything but killing; the outcome of each by name.
pub fn attempts(around: &Surroundings) -> BTreeMap<&'static str, Attempt> {
    let parent = std::os::unix::process::parent_id();
    let home = &around.home;
    let mut outcomes = BTreeMap::from([
        ("files: secrets of jobs", first_file(&home.join("jobs"), "secrets")),
        ("files: the store", first_file(&home.join("store"), "spec.json")),
        ("files: jobs are listed", std::fs::read_dir(home.join("jobs")).map(|_| "a listing".to_owned())),
        ("files: write into the home", write(&home.join("escaped"))),
        ("files: write into /tmp", write(Path::new("/tmp/training-gym-escaped"))),
        ("files: write into /dev/shm", write(Path::new("/dev/shm/training-gym-escaped"))),
        ("files: write over the program", append(Path::new("/proc/self/exe"))),
        ("secrets: in our variables", in_variables()),
        ("secrets: in the parent's variables", read_all(&format!("/proc/{parent}/environ"))),
        ("network: the metadata address", connect(SocketAddr::from((Ipv4Addr::new(169, 254, 169, 254), 80)))),
        ("network: TCP", connect(SocketAddr::from((Ipv4Addr::LOCALHOST, around.port)))),
        ("network: UDP", UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map(|_| "a socket".to_owned())),
        ("network: a Unix socket outside", UnixStream::connect(&around.socket).map(|_| "a connection".to_owned())),
    ]);
    outcomes.extend(calls::attempts(parent));
    outcomes
}

/// What an ordinary function does; each must work.
pub fn ordinary() -> BTreeMap<&'static str, Attempt> {
    BTreeMap::from([
        ("time zone", readable("/etc/localtime")),
        ("random numbers", random()),
        ("itself", read_all("/proc/self/status")),
        ("its cores", std::thread::available_parallelism().map(|cores| cores.to_string())),
        ("a temporary file", temporary()),
        ("threads", std::thread::spawn(|| "joined".to_owned()).join().map_err(|_| io::Error::other("a panic"))),
        ("another program", run("true", &[])),
        ("a shell that writes", run("sh", &["-c", "echo x > note.$$ && cat note.$$ && rm note.$$"])),
        ("a pair of sockets", UnixStream::pair().map(|_| "a pair".to_owned())),
        ("a socket of its own", own_socket()),
        ("a null device", std::fs::write("/dev/null", "x").map(|()| "written".to_owned())),
    ])
}

/// Kills the trainer, or whoever started us.
///
/// # Errors
/// When it is refused.
pub fn kill_parent() -> Attempt {
    calls::kill(std::os::unix::process::parent_id())
}

/// Leaves a process behind that names `marker`, in a session of its own if it can.
///
/// # Errors
/// When it cannot be started.
pub fn leave_behind(marker: &str) -> Attempt {
    let script = format!("(trap '' HUP TERM; sleep 600; : {marker}) & (setsid sleep 600 || true) & : {marker}");
    Command::new("sh").args(["-c", &script]).spawn()?.wait().map(|_| "started".to_owned())
}

/// Connects to an address, such as `127.0.0.1:80`.
///
/// # Errors
/// When it is refused.
pub fn connect_to(address: &str) -> Attempt {
    connect(address.parse().map_err(io::Error::other)?)
}

/// Opens files until no more are to be had.
///
/// # Errors
/// When there are no more: what is expected.
pub fn exhaust_files() -> Attempt {
    let mut open = Vec::new();
    loop {
        match std::fs::File::open("/dev/null") {
            Ok(_) if open.len() >= 100_000 => return Ok(format!("{} files", open.len())),
            Ok(file) => open.push(file),
            Err(error) => return Err(error),
        }
    }
}

fn first_file(folder: &Path, part: &str) -> Attempt {
    let mut folders = vec![folder.to_owned()];
    let mut refused = io::Error::from(io::ErrorKind::NotFound);
    while let Some(folder) = folders.pop() {
        match std::fs::read_dir(&folder) {
            Err(error) => refused = error,
            Ok(entries) => {
                for path in entries.flatten().map(|entry| entry.path()) {
                    if path.is_dir() {
                        folders.push(path);
                    } else if path.to_string_lossy().contains(part) {
                        match std::fs::read(&path) {
                            Ok(_) => return Ok(path.display().to_string()),
                            Err(error) => refused = error,
                        }
                    }
                }
            }
        }
    }
    Err(refused)
}

fn write(path: &Path) -> Attempt {
    std::fs::write(path, "escaped").map(|()| path.display().to_string())
}

fn append(path: &Path) -> Attempt {
    std::fs::OpenOptions::new().append(true).open(path).map(|_| path.display().to_string())
}

fn in_variables() -> Attempt {
    let more: Vec<String> =
        std::env::vars().map(|(name, _)| name).filter(|name| !VARIABLES.contains(&name.as_str())).collect();
    if more.is_empty() { Err(io::Error::other("there are none")) } else { Ok(more.join(" ")) }
}

/// Reads a file to its end.
///
/// # Errors
/// When it cannot be read.
pub fn read_all(path: &str) -> Attempt {
    let mut text = Vec::new();
    std::fs::File::open(path)?.read_to_end(&mut text)?;
    Ok(format!("{} bytes of {path}", text.len()))
}

fn readable(path: &str) -> Attempt {
    match std::fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok("a machine without one".to_owned()),
        opened => opened.map(|_| "read".to_owned()),
    }
}

fn random() -> Attempt {
    let mut bytes = [0; 64];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok("64 bytes".to_owned())
}

fn connect(address: SocketAddr) -> Attempt {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).map(|_| format!("a connection to {address}"))
}

/// A name that no call beside this one has.
fn fresh(name: &str) -> String {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    format!("{name}-{}", CALLS.fetch_add(1, Ordering::Relaxed))
}

fn temporary() -> Attempt {
    let path = std::env::temp_dir().join(fresh("note"));
    std::fs::File::create(&path)?.write_all(b"x")?;
    std::fs::rename(&path, path.with_extension("txt"))?;
    std::fs::remove_file(path.with_extension("txt"))?;
    Ok("written".to_owned())
}

fn own_socket() -> Attempt {
    // By its name in the working folder: a whole path may be too long for a socket.
    let path = fresh("own");
    UnixListener::bind(&path)?;
    std::fs::remove_file(path).map(|()| "bound".to_owned())
}

fn run(program: &str, arguments: &[&str]) -> Attempt {
    let output = Command::new(program).args(arguments).output()?;
    if output.status.success() {
        return Ok("ran".to_owned());
    }
    Err(io::Error::other(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))))
}

mod calls {
    //! Attempts that std has no words for.

    use std::ffi::c_long;
    use std::io;

    use super::Attempt;

    #[expect(unsafe_code, reason = "the kernel is asked directly, as who wants out would ask")]
    fn call(number: c_long, arguments: [c_long; 6]) -> Attempt {
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: no call here is given memory that it may write to, or a wrong length of one.
        match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
            -1 => Err(io::Error::last_os_error()),
            got => Ok(got.to_string()),
        }
    }

    fn of(number: c_long, arguments: &[c_long]) -> Attempt {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        call(number, all)
    }

    fn socket(family: i32, kind: i32) -> Attempt {
        of(libc::SYS_socket, &[family.into(), kind.into()])
    }

    pub(super) fn kill(pid: u32) -> Attempt {
        of(libc::SYS_kill, &[pid.into(), libc::SIGKILL.into()])
    }

    pub(super) fn attempts(parent: u32) -> Vec<(&'static str, Attempt)> {
        const SEIZE: c_long = 0x4206;
        let parent = c_long::from(parent);
        vec![
            ("network: netlink", socket(libc::AF_NETLINK, libc::SOCK_RAW)),
            ("network: raw", socket(libc::AF_INET, libc::SOCK_RAW)),
            ("network: packets", socket(libc::AF_PACKET, libc::SOCK_RAW)),
            ("network: IPv6", socket(libc::AF_INET6, libc::SOCK_STREAM)),
            ("network: the host of a virtual machine", socket(libc::AF_VSOCK, libc::SOCK_STREAM)),
            // A null pointer for its parameters: EFAULT where the call is let through.
            ("network: io_uring", of(libc::SYS_io_uring_setup, &[8])),
            ("memory: ptrace", of(libc::SYS_ptrace, &[SEIZE, parent])),
            ("memory: process_vm_readv", of(libc::SYS_process_vm_readv, &[parent, 0, 0, 0, 0, 0])),
            ("memory: /proc/PID/mem", super::append(format!("/proc/{parent}/mem").as_ref())),
            ("memory: /proc/PID/maps", super::read_all(&format!("/proc/{parent}/maps"))),
            ("files: of the parent's descriptors", descriptor(parent)),
            (
                "files: the parent's root",
                std::fs::read_dir(format!("/proc/{parent}/root")).map(|_| "listed".to_owned()),
            ),
            ("limits of the parent", limit(parent)),
            ("a session of its own", of(libc::SYS_setsid, &[])),
            ("namespaces", of(libc::SYS_unshare, &[libc::CLONE_NEWUSER.into()])),
            ("namespaces: by clone", of(libc::SYS_clone, &[(libc::CLONE_NEWUSER | libc::CLONE_THREAD).into()])),
            ("mounts", of(libc::SYS_mount, &[0, 0, 0, 0, 0])),
            ("kernel: bpf", of(libc::SYS_bpf, &[0, 0, 0])),
            ("kernel: keys", of(libc::SYS_keyctl, &[0, -3, 0])),
            ("kernel: userfaultfd", of(libc::SYS_userfaultfd, &[1])),
        ]
    }

    fn descriptor(parent: c_long) -> Attempt {
        let process = of(libc::SYS_pidfd_open, &[parent, 0])?;
        let process: c_long = process.parse().map_err(io::Error::other)?;
        of(libc::SYS_pidfd_getfd, &[process, 0, 0])
    }

    #[expect(unsafe_code, reason = "prlimit is given a limit to set")]
    fn limit(parent: c_long) -> Attempt {
        let none = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        // SAFETY: reads the limit it is given and writes nothing back.
        let set = unsafe { libc::prlimit(parent as i32, libc::RLIMIT_NOFILE, &none, std::ptr::null_mut()) };
        if set == 0 { Ok("set".to_owned()) } else { Err(io::Error::last_os_error()) }
    }
}
