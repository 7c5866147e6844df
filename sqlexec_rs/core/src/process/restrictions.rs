//! Kernel restrictions on a worker process, independent of the code in it. On kernels without a mechanism, the
//! restriction is skipped.

#[cfg(target_os = "linux")]
pub(super) use linux::{forbid_calls, forbid_writes};

/// Restricts nothing.
#[cfg(not(target_os = "linux"))]
pub(super) fn forbid_writes(_temporary: &[std::path::PathBuf]) {}

/// Restricts nothing.
#[cfg(not(target_os = "linux"))]
pub(super) fn forbid_calls() {}

/// Returns the folders in which SQLite creates temporary files.
pub(super) fn temporary_folders() -> Vec<std::path::PathBuf> {
    let named = ["SQLITE_TMPDIR", "TMPDIR"].iter().filter_map(std::env::var_os).map(Into::into);
    named.chain(["/var/tmp", "/usr/tmp", "/tmp"].map(Into::into)).collect()
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use landlock::{
        ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
        RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
    };
    use libc::c_long;
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

    /// The newest rules in use; older kernels apply the ones that they support.
    const RULES: ABI = ABI::V6;

    /// Forbids this thread and its descendants to write to or create files outside the temporary folders, run
    /// programs, connect by TCP, and signal processes other than their children.
    pub(crate) fn forbid_writes(temporary: &[PathBuf]) {
        let _ = try_to_forbid_writes(temporary);
    }

    fn try_to_forbid_writes(temporary: &[PathBuf]) -> Result<(), RulesetError> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let change = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile;
        let rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(RULES))?
            .handle_access(AccessNet::from_all(RULES))?
            .scope(Scope::from_all(RULES))?
            .create()?;
        let mut rules = allow(rules, "/".into(), read)?;
        for folder in temporary {
            rules = allow(rules, folder.clone(), read | change)?;
        }
        allow(rules, "/dev/null".into(), AccessFs::ReadFile | AccessFs::WriteFile)?.restrict_self()?;
        Ok(())
    }

    /// Allows `access` below a path, if the path exists.
    fn allow(rules: RulesetCreated, path: PathBuf, access: BitFlags<AccessFs>) -> Result<RulesetCreated, RulesetError> {
        match PathFd::new(path) {
            Ok(directory) => rules.add_rule(PathBeneath::new(directory, access)),
            Err(_) => Ok(rules),
        }
    }

    /// System calls that reading a database never needs: those that start programs and processes, reach other
    /// processes and the network, change names, owners and privileges, or configure the kernel. They fail with a
    /// permission error.
    const FORBIDDEN: &[c_long] = &[
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_acct,
        libc::SYS_add_key,
        libc::SYS_bind,
        libc::SYS_bpf,
        libc::SYS_capset,
        libc::SYS_chroot,
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_connect,
        libc::SYS_delete_module,
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_fchmodat,
        libc::SYS_fchownat,
        libc::SYS_finit_module,
        libc::SYS_fsetxattr,
        libc::SYS_fsmount,
        libc::SYS_fsopen,
        libc::SYS_init_module,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_io_uring_setup,
        libc::SYS_kexec_load,
        libc::SYS_keyctl,
        libc::SYS_kill,
        libc::SYS_linkat,
        libc::SYS_listen,
        libc::SYS_lsetxattr,
        libc::SYS_memfd_create,
        libc::SYS_mkdirat,
        libc::SYS_mknodat,
        libc::SYS_mount,
        libc::SYS_move_mount,
        libc::SYS_open_by_handle_at,
        libc::SYS_open_tree,
        libc::SYS_perf_event_open,
        libc::SYS_personality,
        libc::SYS_pidfd_getfd,
        libc::SYS_pidfd_open,
        libc::SYS_pidfd_send_signal,
        libc::SYS_pivot_root,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_ptrace,
        libc::SYS_quotactl,
        libc::SYS_reboot,
        libc::SYS_renameat,
        libc::SYS_renameat2,
        libc::SYS_request_key,
        libc::SYS_setfsgid,
        libc::SYS_setfsuid,
        libc::SYS_setgid,
        libc::SYS_setgroups,
        libc::SYS_setns,
        libc::SYS_setregid,
        libc::SYS_setresgid,
        libc::SYS_setresuid,
        libc::SYS_setreuid,
        libc::SYS_setuid,
        libc::SYS_setxattr,
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_swapoff,
        libc::SYS_swapon,
        libc::SYS_symlinkat,
        libc::SYS_umount2,
        libc::SYS_unshare,
        libc::SYS_userfaultfd,
    ];

    /// Legacy variants of these calls, present only on the oldest architectures.
    #[cfg(target_arch = "x86_64")]
    const FORBIDDEN_OLD: &[c_long] = &[
        libc::SYS_chmod,
        libc::SYS_chown,
        libc::SYS_fork,
        libc::SYS_lchown,
        libc::SYS_link,
        libc::SYS_mkdir,
        libc::SYS_mknod,
        libc::SYS_rename,
        libc::SYS_symlink,
        libc::SYS_vfork,
    ];
    #[cfg(not(target_arch = "x86_64"))]
    const FORBIDDEN_OLD: &[c_long] = &[];

    /// Forbids this thread the system calls that queries never need.
    pub(crate) fn forbid_calls() {
        let numbers = FORBIDDEN.iter().chain(FORBIDDEN_OLD);
        let rules: BTreeMap<i64, _> = numbers.map(|number| (*number, Vec::new())).collect();
        let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
        let Ok(target) = std::env::consts::ARCH.try_into() else { return };
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, target);
        if let Some(program) = filter.ok().and_then(|filter| BpfProgram::try_from(filter).ok()) {
            let _ = apply_filter(&program);
        }
    }

    #[cfg(test)]
    mod tests {
        use std::fs::{self, File};
        use std::io::ErrorKind;
        use std::net::{TcpListener, TcpStream};
        use std::os::unix::net::UnixStream;
        use std::path::Path;
        use std::process::Command;
        use std::{io, thread};

        use super::*;

        /// Runs `act` on a restricted thread.
        fn restricted<T: Send>(restriction: impl FnOnce() + Send, act: impl FnOnce() -> T + Send) -> T {
            let walled = || {
                restriction();
                act()
            };
            thread::scope(|scope| scope.spawn(walled).join()).unwrap()
        }

        fn kinds<T>(results: Vec<io::Result<T>>) -> Vec<Option<ErrorKind>> {
            results.into_iter().map(|result| result.err().map(|error| error.kind())).collect()
        }

        #[test]
        fn files_are_writable_in_temporary_folders_only() {
            let (temporary, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let allowed = [temporary.path().to_owned()];
            let act = |folder: &Path| {
                let file = folder.join("file");
                kinds(vec![
                    File::create(&file).map(drop),
                    fs::write(&file, "bytes"),
                    fs::read("/proc/self/status").map(drop),
                    fs::remove_file(&file),
                    fs::create_dir(folder.join("inner")),
                    File::options().write(true).open("/proc/self/mem").map(drop),
                    Command::new("/bin/true").status().map(drop),
                ])
            };
            let (fine, denied) = (None, Some(ErrorKind::PermissionDenied));
            let inside = restricted(|| forbid_writes(&allowed), || act(temporary.path()));
            assert_eq!(inside, [fine, fine, fine, fine, denied, denied, denied]);
            fs::write(outside.path().join("file"), "kept").unwrap();
            let walled = restricted(|| forbid_writes(&allowed), || act(outside.path()));
            assert_eq!(walled, [denied, denied, fine, denied, denied, denied, denied]);
            assert_eq!(fs::read(outside.path().join("file")).unwrap(), b"kept");
        }

        #[test]
        fn unneeded_system_calls_are_not_permitted() {
            let folder = tempfile::tempdir().unwrap();
            let act = || {
                kinds(vec![
                    Command::new("/bin/true").status().map(drop),
                    TcpListener::bind("127.0.0.1:0").map(drop),
                    TcpStream::connect("127.0.0.1:9").map(drop),
                    UnixStream::pair().map(drop),
                    thread::Builder::new().spawn(|| ()).map(drop),
                    fs::create_dir(folder.path().join("inner")),
                    fs::rename(folder.path(), folder.path().with_extension("renamed")),
                    File::create(folder.path().join("file")).map(drop),
                    fs::remove_file(folder.path().join("file")),
                ])
            };
            let mut expected = [Some(ErrorKind::PermissionDenied); 9];
            expected[7..].fill(None);
            assert_eq!(restricted(forbid_calls, act), expected);
        }
    }
}
