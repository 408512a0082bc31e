//! Files whose locks end with this process, whatever children it has.
//!
//! A lock of the operating system (`flock`) is of the open file, which a forked child has open too: if its parent is killed, the lock stays
//! until the child ends, and everybody waits for work that nobody does. So these files are listed, and each child exchanges its own for
//! `/dev/null` before any other code runs there. Their numbers stay taken, so that whoever closes one there closes nothing else.

#![cfg_attr(unix, expect(unsafe_code, reason = "pthread_atfork; what the handler may do is stated there"))]

use std::fs::File;
use std::ops::{Deref, DerefMut};

/// See the module. It is listed before it is locked.
#[derive(Debug)]
pub(in crate::store) struct Unforked {
    file: File,
    #[cfg(unix)]
    listed: Option<&'static list::Entry>,
}

impl Unforked {
    pub(in crate::store) fn new(file: File) -> Self {
        Self {
            #[cfg(unix)]
            listed: list::add(&file),
            file,
        }
    }
}

/// Before the file is closed: its number may be another file's right after that.
#[cfg(unix)]
impl Drop for Unforked {
    fn drop(&mut self) {
        if let Some(listed) = self.listed {
            list::remove(listed);
        }
    }
}

impl Deref for Unforked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl DerefMut for Unforked {
    fn deref_mut(&mut self) -> &mut File {
        &mut self.file
    }
}

/// Such a file, whose lock is freed by name when this is dropped: a child that another thread is starting just now may have it open too,
/// and to close it is not enough then.
#[derive(Debug)]
pub(in crate::store) struct Locked(pub(in crate::store) Unforked);

impl Drop for Locked {
    fn drop(&mut self) {
        drop(self.0.unlock());
    }
}

#[cfg(unix)]
mod list {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::sync::Once;
    use std::sync::atomic::{AtomicI32, Ordering};

    /// The number of an open file, or [`NONE`].
    pub(super) type Entry = AtomicI32;

    const NONE: i32 = -1;
    /// Most files that are listed; further ones are left to children.
    const MOST: usize = 4096;

    static LISTED: [Entry; MOST] = [const { AtomicI32::new(NONE) }; MOST];

    pub(super) fn add(file: &File) -> Option<&'static Entry> {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: `leave` does what a forked child may do whatever other threads held, and stays loaded as long as the process lives: Python
            // unloads no extension.
            let code = unsafe { libc::pthread_atfork(None, None, Some(leave)) };
            if code != 0 {
                tracing::debug!("forked children have the locks of this process: error {code}");
            }
        });
        let number = file.as_raw_fd();
        let take = |entry: &&Entry| entry.compare_exchange(NONE, number, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        LISTED.iter().find(take)
    }

    pub(super) fn remove(entry: &Entry) {
        entry.store(NONE, Ordering::Relaxed);
    }

    /// Exchanges the listed files of a forked child, in which nothing else runs yet.
    extern "C" fn leave() {
        // SAFETY: open, dup2, fcntl and close may be called in a forked child whatever other threads held; the name ends with a zero. A listed
        // number is that of an open file whose owner lives, or of one that is being closed just now, which the child has open, and nobody
        // there closes.
        unsafe {
            let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            if nothing < 0 {
                return;
            }
            for entry in &LISTED {
                let number = entry.load(Ordering::Relaxed);
                if number != NONE && libc::dup2(nothing, number) == number {
                    libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC);
                }
            }
            libc::close(nothing);
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_forked_child_has_no_lock_of_its_parent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = Unforked::new(File::create(&path).unwrap());
        held.try_lock().unwrap();
        // SAFETY: the child only waits for its end.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                loop {
                    libc::pause();
                }
            }
            child
        };
        assert!(child > 0);
        let other = File::open(&path).unwrap();
        let is_free = || other.try_lock().is_ok();
        let was_free = is_free();
        // As if this process were killed: nobody frees the lock by name.
        drop(held);
        let began = Instant::now();
        // The child may not have begun to run.
        while !is_free() && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let is_free = is_free();
        // SAFETY: it is a child of this process, and was not waited for.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert!(!was_free && is_free);
    }

    #[test]
    fn a_lock_is_freed_by_name_while_somebody_else_has_its_file_open() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let locked = Locked(Unforked::new(File::create(&path).unwrap()));
        let child = locked.0.try_clone().unwrap();
        locked.0.try_lock().unwrap();
        let other = File::open(&path).unwrap();
        assert!(other.try_lock().is_err());
        drop(locked);
        other.try_lock().unwrap();
        drop(child);
    }
}
