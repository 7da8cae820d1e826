//! The filter of system calls.
//!
//! It refuses with `EPERM`, so that a function that tries gets an error it can report, instead of being
//! killed. What it lets through is everything a program computes, reads and writes with; what it
//! refuses is the ways to other processes, to the network, and into the kernel.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};
use training_gym_core::spec::Egress;

use super::Error;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Refused whatever the arguments are.
const NEVER: &[c_long] = &[
    // Other processes: their memory, files, signals, scheduling.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_kcmp,
    libc::SYS_migrate_pages,
    libc::SYS_ioprio_set,
    // Its session and group are how the whole of it is ended.
    libc::SYS_setsid,
    libc::SYS_setpgid,
    // Memory and queues that any process of the user can open by a number or a name.
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_msgget,
    libc::SYS_mq_open,
    // A ring makes sockets, opens files and sends without any call that a filter sees.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    // The kernel itself, and what it keeps for others.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_syslog,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// `CLONE_NEW…`: a namespace of its own, in which it would have rights again.
const NEW_NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// `ioctl` requests: input on a terminal, and signals to whoever one likes.
const REQUESTS: [u64; 4] = [0x5412, 0x541C, 0x8901, 0x8902];

/// `fcntl` commands that have a signal sent to another process: `F_SETOWN`, `F_SETSIG`, `F_SETOWN_EX`.
const OWNERS: [u64; 3] = [8, 10, 15];

/// The programs to install, in order. `pid` is the process's own, which it keeps over exec; with
/// `signals_scoped` Landlock sees to signals, which then may reach its own children.
pub(super) fn filters(egress: &Egress, pid: u32, signals_scoped: bool) -> Result<Vec<BpfProgram>, Error> {
    let mut rules: Rules = NEVER.iter().map(|call| (*call, Vec::new())).collect();
    network(&mut rules, egress)?;
    itself_only(&mut rules, pid, signals_scoped)?;
    for flag in NEW_NAMESPACES {
        let bit = u64::from(flag.unsigned_abs());
        let bit = if flag < 0 { u64::from(flag as u32) } else { bit };
        refuse(&mut rules, libc::SYS_clone, vec![argument(0, SeccompCmpOp::MaskedEq(bit), bit)?])?;
    }
    for request in REQUESTS {
        refuse(&mut rules, libc::SYS_ioctl, vec![argument(1, SeccompCmpOp::Eq, request)?])?;
    }
    for command in OWNERS {
        refuse(&mut rules, libc::SYS_fcntl, vec![argument(1, SeccompCmpOp::Eq, command)?])?;
    }
    for device in [libc::S_IFCHR, libc::S_IFBLK] {
        let is = |position| argument(position, SeccompCmpOp::MaskedEq(u64::from(libc::S_IFMT)), u64::from(device));
        refuse(&mut rules, libc::SYS_mknodat, vec![is(2)?])?;
        #[cfg(target_arch = "x86_64")]
        refuse(&mut rules, libc::SYS_mknod, vec![is(1)?])?;
    }
    // Its flags lie in memory, which a filter cannot read. Who hears that there is no such call uses
    // `clone`: every C library does.
    let clone3: Rules = [(libc::SYS_clone3, Vec::new())].into();
    let absent = compile(clone3, libc::ENOSYS)?;
    let mut main = compile(rules, libc::EPERM)?;
    main.splice(0..0, other_abis());
    Ok(vec![absent, main])
}

/// Sockets. Without egress only streams of the machine itself can be made, and none connects: who
/// listens on a Unix socket may be an agent with keys, a container engine, or a session's bus.
fn network(rules: &mut Rules, egress: &Egress) -> Result<(), Error> {
    const UNIX: u64 = libc::AF_UNIX as u64;
    let kind = |kind: i32| argument(1, SeccompCmpOp::MaskedEq(0xf), kind as u64);
    let not = |family: i32| argument(0, SeccompCmpOp::Ne, family as u64);
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        let mut other = vec![not(libc::AF_UNIX)?];
        if !egress.is_none() {
            other.extend([not(libc::AF_INET)?, not(libc::AF_INET6)?]);
        }
        refuse(rules, call, other)?;
        refuse(rules, call, vec![kind(libc::SOCK_RAW)?])?;
        // A datagram names its receiver in memory, past any filter.
        refuse(rules, call, vec![argument(0, SeccompCmpOp::Eq, UNIX)?, kind(libc::SOCK_DGRAM)?])?;
    }
    if egress.is_none() {
        rules.insert(libc::SYS_connect, Vec::new());
    }
    Ok(())
}

/// Calls that name a process may name this one, or 0, which is the caller.
fn itself_only(rules: &mut Rules, pid: u32, signals_scoped: bool) -> Result<(), Error> {
    let mut calls = vec![
        (libc::SYS_prlimit64, 0),
        (libc::SYS_sched_setaffinity, 0),
        (libc::SYS_sched_setscheduler, 0),
        (libc::SYS_sched_setparam, 0),
        (libc::SYS_sched_setattr, 0),
        (libc::SYS_move_pages, 0),
        (libc::SYS_setpriority, 1),
    ];
    if !signals_scoped {
        let signals = [libc::SYS_kill, libc::SYS_tgkill, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo];
        calls.extend(signals.map(|call| (call, 0)));
        rules.insert(libc::SYS_tkill, Vec::new());
    }
    for (call, position) in calls {
        let other = [u64::from(pid), 0].map(|known| argument(position, SeccompCmpOp::Ne, known));
        refuse(rules, call, other.into_iter().collect::<Result<_, _>>()?)?;
    }
    Ok(())
}

/// The first 32 bits of an argument: what these calls read of it.
fn argument(position: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompCondition, Error> {
    SeccompCondition::new(position, SeccompCmpArgLen::Dword, is, value).map_err(broken)
}

/// Adds a case in which a call is refused: all conditions hold.
fn refuse(rules: &mut Rules, call: c_long, conditions: Vec<SeccompCondition>) -> Result<(), Error> {
    rules.entry(call).or_default().push(SeccompRule::new(conditions).map_err(broken)?);
    Ok(())
}

fn compile(rules: Rules, answer: i32) -> Result<BpfProgram, Error> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(broken)?;
    let refused = SeccompAction::Errno(answer.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).map_err(broken)?;
    BpfProgram::try_from(filter).map_err(broken)
}

/// Instructions that refuse every call by another entry than this machine's own (32-bit, x32): its
/// numbers mean other calls. `<linux/filter.h>`, `<linux/seccomp.h>`: a `seccomp_data` begins with the
/// call's number and the architecture, 32 bits each.
fn other_abis() -> Vec<sock_filter> {
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    const ERRNO: u32 = 0x0005_0000; // SECCOMP_RET_ERRNO
    const X32: u32 = 0x4000_0000;
    #[cfg(target_arch = "x86_64")]
    const ARCH: u32 = 0xC000_003E;
    #[cfg(target_arch = "aarch64")]
    const ARCH: u32 = 0xC000_00B7;
    #[cfg(target_arch = "riscv64")]
    const ARCH: u32 = 0xC000_00F3;
    let eperm = ERRNO | libc::EPERM.unsigned_abs();
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        step(LOAD, 0, 0, 4),
        step(IF_EQUAL, 1, 0, ARCH),
        step(RETURN, 0, 0, eperm),
        step(LOAD, 0, 0, 0),
        step(IF_AT_LEAST, 0, 1, X32),
        step(RETURN, 0, 0, eperm),
    ]
}

fn broken(error: impl std::fmt::Display) -> Error {
    Error::Rules(format!("the filter of system calls cannot be made: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a filter as the kernel does, on one call: `None` lets it through.
    fn verdict(program: &BpfProgram, arch: u32, call: c_long, arguments: [u64; 6]) -> Option<i32> {
        let mut data = vec![u32::try_from(call).unwrap(), arch, 0, 0];
        for argument in arguments {
            data.extend([argument as u32, (argument >> 32) as u32]);
        }
        let (mut at, mut accumulator) = (0usize, 0u32);
        loop {
            let sock_filter { code, jt, jf, k } = program[at].clone();
            at += 1;
            let jump = |yes: bool| usize::from(if yes { jt } else { jf });
            match code {
                0x20 => accumulator = data[k as usize / 4],
                0x05 => at += k as usize,
                0x15 => at += jump(accumulator == k),
                0x25 => at += jump(accumulator > k),
                0x35 => at += jump(accumulator >= k),
                0x54 => accumulator &= k,
                0x06 if k == 0x7fff_0000 => return None,
                0x06 => return Some((k & 0xffff) as i32),
                other => panic!("instruction {other:#x} is not known to this test"),
            }
        }
    }

    const NATIVE: u32 = if cfg!(target_arch = "x86_64") { 0xC000_003E } else { 0xC000_00B7 };
    const PID: u64 = 4711;

    fn ask(egress: &Egress, scoped: bool, call: c_long, arguments: &[u64]) -> Option<i32> {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        let filters = filters(egress, PID as u32, scoped).unwrap();
        filters.iter().find_map(|filter| verdict(filter, NATIVE, call, all))
    }

    #[test]
    fn without_egress_only_streams_of_the_machine_are_made() {
        let eperm = Some(libc::EPERM);
        let socket = |egress: &Egress, family: i32, kind: i32| {
            ask(egress, true, libc::SYS_socket, &[family as u64, (kind | libc::SOCK_CLOEXEC) as u64])
        };
        let none = Egress::None;
        assert_eq!(socket(&none, libc::AF_UNIX, libc::SOCK_STREAM), None);
        assert_eq!(socket(&none, libc::AF_UNIX, libc::SOCK_SEQPACKET), None);
        assert_eq!(socket(&none, libc::AF_UNIX, libc::SOCK_DGRAM), eperm);
        for family in [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG] {
            for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW] {
                assert_eq!(socket(&none, family, kind), eperm, "{family} {kind}");
            }
        }
        // The upper half of an argument is nothing the call reads, so it hides nothing.
        assert_eq!(ask(&none, true, libc::SYS_socket, &[(1 << 32) | libc::AF_INET as u64, 1]), eperm);
        assert_eq!(ask(&none, true, libc::SYS_connect, &[3]), eperm);
        assert_eq!(ask(&none, true, libc::SYS_socketpair, &[libc::AF_UNIX as u64, 1]), None);

        let some = Egress::Declared(vec!["judge.example.org:443".to_owned()]);
        assert_eq!(socket(&some, libc::AF_INET, libc::SOCK_STREAM), None);
        assert_eq!(socket(&some, libc::AF_INET6, libc::SOCK_DGRAM), None);
        assert_eq!(socket(&some, libc::AF_INET, libc::SOCK_RAW), eperm);
        assert_eq!(socket(&some, libc::AF_NETLINK, libc::SOCK_DGRAM), eperm);
        assert_eq!(ask(&some, true, libc::SYS_connect, &[3]), None);
    }

    #[test]
    fn ways_to_others_are_refused_and_computing_is_not() {
        let refused = |call, arguments: &[u64]| ask(&Egress::None, true, call, arguments);
        for call in NEVER {
            assert_eq!(refused(*call, &[]), Some(libc::EPERM), "{call}");
        }
        assert_eq!(refused(libc::SYS_clone3, &[]), Some(libc::ENOSYS));
        for flag in NEW_NAMESPACES {
            let flags = u64::from(flag as u32) | libc::SIGCHLD as u64;
            assert_eq!(refused(libc::SYS_clone, &[flags]), Some(libc::EPERM), "{flag:#x}");
        }
        let thread = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_FS | libc::CLONE_FILES;
        assert_eq!(refused(libc::SYS_clone, &[thread as u64]), None);
        assert_eq!(refused(libc::SYS_clone, &[libc::SIGCHLD as u64]), None);
        for call in [
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_openat,
            libc::SYS_mmap,
            libc::SYS_futex,
            libc::SYS_execve,
            libc::SYS_getrandom,
            libc::SYS_wait4,
            libc::SYS_bind,
            libc::SYS_accept4,
            libc::SYS_pidfd_open,
            libc::SYS_memfd_create,
        ] {
            assert_eq!(refused(call, &[]), None, "{call}");
        }
        let device = u64::from(libc::S_IFBLK | 0o600);
        assert_eq!(refused(libc::SYS_mknodat, &[0, 0, device]), Some(libc::EPERM));
        assert_eq!(refused(libc::SYS_mknodat, &[0, 0, u64::from(libc::S_IFIFO | 0o600)]), None);
        assert_eq!(refused(libc::SYS_ioctl, &[0, 0x5412]), Some(libc::EPERM));
        assert_eq!(refused(libc::SYS_fcntl, &[0, 8, 1]), Some(libc::EPERM));
        assert_eq!(refused(libc::SYS_fcntl, &[0, libc::F_DUPFD_CLOEXEC as u64]), None);
    }

    #[test]
    fn a_process_may_be_itself() {
        for call in [libc::SYS_prlimit64, libc::SYS_sched_setaffinity] {
            for (pid, expected) in [(0, None), (PID, None), (1, Some(libc::EPERM))] {
                assert_eq!(ask(&Egress::None, true, call, &[pid]), expected, "{call} {pid}");
            }
        }
        // Where Landlock does not see to signals, the filter does.
        for (scoped, other) in [(true, None), (false, Some(libc::EPERM))] {
            assert_eq!(ask(&Egress::None, scoped, libc::SYS_kill, &[1, 9]), other);
            assert_eq!(ask(&Egress::None, scoped, libc::SYS_tgkill, &[PID, PID, 6]), None);
        }
    }

    #[test]
    fn other_entries_are_refused() {
        let filter = filters(&Egress::None, 1, true).unwrap().pop().unwrap();
        assert_eq!(verdict(&filter, 0x4000_0003, libc::SYS_read, [0; 6]), Some(libc::EPERM), "32-bit");
        assert_eq!(verdict(&filter, NATIVE, libc::SYS_read | 0x4000_0000, [0; 6]), Some(libc::EPERM), "x32");
        assert_eq!(verdict(&filter, NATIVE, libc::SYS_read, [0; 6]), None);
    }
}
