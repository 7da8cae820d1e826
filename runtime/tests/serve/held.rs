//! A regular file that opens as one on a disk that does not answer.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// `F_SETSIG` of `linux/fcntl.h`, which `libc` has not got.
const SET_SIGNAL: i32 = 10;

/// Holds a file by a write lease (`fcntl(2)`, "Leases"): who opens it waits until this is dropped, or for
/// the kernel's `lease-break-time`, 45 s by default.
#[derive(Debug)]
pub struct Held(File);

impl Held {
    /// Holds the file at `path`, which nobody may have open.
    ///
    /// # Errors
    /// Where it cannot be opened, or is on a file system without leases.
    pub fn new(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        // The default signal for a lease that is asked for would end us; this one is ignored by default.
        control(&file, SET_SIGNAL, libc::SIGURG)?;
        control(&file, libc::F_SETLEASE, libc::F_WRLCK)?;
        Ok(Self(file))
    }

    /// Whether somebody waits for it.
    ///
    /// # Panics
    /// Where the lease cannot be asked for, which cannot be while the file is open.
    pub fn is_waited_for(&self) -> bool {
        // While somebody waits, this is what the lease is to become.
        control(&self.0, libc::F_GETLEASE, 0).expect("an open file has a lease or none") != libc::F_WRLCK
    }
}

#[expect(unsafe_code, reason = "std has no wrapper of fcntl")]
fn control(file: &File, command: i32, argument: i32) -> std::io::Result<i32> {
    // SAFETY: a plain system call on a descriptor of ours, with a number as its argument.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
    if answer == -1 { Err(std::io::Error::last_os_error()) } else { Ok(answer) }
}
