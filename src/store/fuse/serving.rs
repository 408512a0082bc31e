//! The kernel's requests: those whose answers are known are answered at once, those that ask a store are work.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig, LockOwner, OpenAccMode,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};

use super::super::filesystem::{Entry, FileSystem};
use super::answers::{Answers, Handle, Names};
use super::nodes::ROOT;
use super::work::Work;
use crate::error::Result;

/// The kernel asks each time: what is believed, and for how long, is known here.
const ASK_AGAIN: Duration = Duration::ZERO;

/// Bytes that the kernel may read ahead of a program.
const READ_AHEAD: u32 = 1 << 20;

/// Reads ahead of programs that the kernel asks for at once: as long as so many are unanswered, it begins no others, of any store.
const BACKGROUND: u16 = 4096;

/// The number of an entry of a list, which the kernel gets with its attributes if it looks it up.
const UNNUMBERED: INodeNo = INodeNo(u32::MAX as u64);

/// A file system that is mounted.
#[derive(Debug)]
pub(super) struct Serving {
    answers: Arc<Answers>,
    work: Work,
}

impl Serving {
    /// # Errors
    /// As [`Work::new`].
    pub(super) fn new(files: FileSystem, root: Entry, trusted: Duration, owner: &Metadata) -> Result<Self> {
        Ok(Self { answers: Arc::new(Answers::new(files, root, trusted, owner)), work: Work::new()? })
    }

    /// Has `work` ask the store of what is behind `number`.
    fn ask(&self, number: u64, work: impl FnOnce(&Answers) + Send + 'static) {
        self.ask_store(self.answers.store(number), work);
    }

    fn ask_store(&self, store: Arc<str>, work: impl FnOnce(&Answers) + Send + 'static) {
        let answers = Arc::clone(&self.answers);
        self.work.give(store, move || work(&answers));
    }

    /// Returns true for a request of the mount itself: a link, or another mount, leads from what it shows back to it.
    fn is_own(&self, request: &Request) -> bool {
        self.work.asks(request.pid())
    }
}

impl Filesystem for Serving {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // It says what it allows, if that is less.
        if let Err(most) = config.set_max_readahead(READ_AHEAD) {
            let _ = config.set_max_readahead(most);
        }
        // It refuses nothing but 0.
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn destroy(&mut self) {
        self.answers.settle();
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if self.is_own(request) {
            return reply.error(Errno::ELOOP);
        }
        // No store has other names.
        let Some(name) = name.to_str().map(str::to_owned) else { return reply.error(Errno::ENOENT) };
        let tell = |answers: &Answers, found: Result<(u64, Entry), Errno>, reply: ReplyEntry| match found {
            Ok((number, entry)) => reply.entry(&ASK_AGAIN, &answers.attributes(number, &entry), Generation(0)),
            Err(number) => reply.error(number),
        };
        match self.answers.known(parent.0, &name) {
            Some(found) => tell(&self.answers, found, reply),
            None => self.ask_store(self.answers.store_below(parent.0, &name), move |answers| {
                tell(answers, answers.find(parent.0, &name), reply);
            }),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.answers.forget(number.0, lookups);
    }

    fn getattr(&self, request: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if self.is_own(request) {
            return reply.error(Errno::ELOOP);
        }
        match self.answers.recent(number.0) {
            Some(entry) => reply.attr(&ASK_AGAIN, &self.answers.attributes(number.0, &entry)),
            None => self.ask(number.0, move |answers| match answers.entry(number.0) {
                Ok(entry) => reply.attr(&ASK_AGAIN, &answers.attributes(number.0, &entry)),
                Err(number) => reply.error(number),
            }),
        }
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.is_own(request) {
            return reply.error(Errno::ELOOP);
        }
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        let store = self.answers.store(number.0);
        self.ask_store(Arc::clone(&store), move |answers| match answers.open(number.0, store) {
            // Without the flag the kernel drops the pages that it has of the file.
            Ok((handle, true)) => reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE),
            Ok((handle, false)) => reply.opened(handle, FopenFlags::empty()),
            Err(number) => reply.error(number),
        });
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(Handle::File(open)) = self.answers.handle(handle) else { return reply.error(Errno::EBADF) };
        self.work.give(Arc::clone(&open.store), move || match open.read(offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(number) => reply.error(number),
        });
    }

    fn release(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.answers.close(number.0, handle);
        reply.ok();
    }

    fn opendir(&self, request: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.is_own(request) {
            return reply.error(Errno::ELOOP);
        }
        let tell = |answers: &Answers, names: Result<Names, Errno>, reply: ReplyOpen| match names {
            Ok(names) => reply.opened(answers.keep(Handle::Directory(Arc::new(names))), FopenFlags::empty()),
            Err(number) => reply.error(number),
        };
        match self.answers.known_names(number.0) {
            Some(names) => tell(&self.answers, Ok(names), reply),
            None => self.ask(number.0, move |answers| tell(answers, answers.list(number.0), reply)),
        }
    }

    fn readdir(&self, _: &Request, number: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(Handle::Directory(names)) = self.answers.handle(handle) else { return reply.error(Errno::EBADF) };
        let dots = [(".", number), ("..", INodeNo(ROOT))].map(|(name, number)| (name, FileType::Directory, number));
        let rest = names.iter().map(|(name, kind)| (name.as_str(), *kind, UNNUMBERED));
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (name, kind, number)) in dots.into_iter().chain(rest).enumerate().skip(from) {
            if reply.add(number, at as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, number: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.answers.close(number.0, handle);
        reply.ok();
    }
}
