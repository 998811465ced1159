//! FUSE's requests, answered from the image.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::image::{Body, Dir, Fault, File, Image, PAGE};

/// Nothing is cached: after a cut all is asked anew.
const TTL: Duration = Duration::ZERO;

/// Past the kernel's cache, and without a flush at close.
const DIRECT: FopenFlags = FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_NOFLUSH);

pub struct Served {
    image: Arc<Mutex<Image>>,
}

impl Served {
    pub fn new(image: Arc<Mutex<Image>>) -> Self {
        Self { image }
    }

    fn lock(&self) -> MutexGuard<'_, Image> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The image, if the handle is of this boot and the power is on.
    fn of_boot(&self, handle: FileHandle) -> Result<MutexGuard<'_, Image>, Fault> {
        let image = self.lock();
        image.alive()?;
        if handle.0 == image.boot() { Ok(image) } else { Err(Fault::Input) }
    }
}

fn errno(fault: Fault) -> Errno {
    match fault {
        Fault::NoEntry => Errno::ENOENT,
        Fault::Exists => Errno::EEXIST,
        Fault::NotEmpty => Errno::ENOTEMPTY,
        Fault::Input => Errno::EIO,
        Fault::NotDir => Errno::ENOTDIR,
    }
}

fn attr(image: &Image, ino: u64) -> Result<FileAttr, Fault> {
    let node = image.node(ino)?;
    let is_dir = image.is_dir(ino);
    let size = image.size(ino);
    Ok(FileAttr {
        ino: INodeNo(ino),
        size,
        blocks: size.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if is_dir { FileType::Directory } else { FileType::RegularFile },
        perm: node.mode,
        nlink: if is_dir { 2 } else { 1 },
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: PAGE as u32,
        flags: 0,
    })
}

macro_rules! answer {
    ($reply:ident, $result:expr, $ok:expr) => {
        match $result {
            Ok(value) => $ok(value),
            Err(fault) => $reply.error(errno(fault)),
        }
    };
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let image = self.lock();
        let found =
            image.alive().and_then(|()| image.lookup(parent.0, name)).and_then(|ino| attr(&image, ino));
        answer!(reply, found, |found| reply.entry(&TTL, &found, Generation(0)));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let image = self.lock();
        let found = image.alive().and_then(|()| attr(&image, ino.0));
        answer!(reply, found, |found| reply.attr(&TTL, &found));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut image = self.lock();
        let mut change = || {
            image.step()?;
            if let Some(mode) = mode {
                image.chmod(ino.0, mode as u16 & 0o7777)?;
            }
            if let Some(size) = size {
                image.truncate(ino.0, size)?;
            }
            attr(&image, ino.0)
        };
        answer!(reply, change(), |found| reply.attr(&TTL, &found));
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let mut image = self.lock();
        let mut make = || {
            image.step()?;
            let ino = image.make(parent.0, name, mode as u16 & 0o7777, Body::Dir(Dir::default()))?;
            attr(&image, ino)
        };
        answer!(reply, make(), |found| reply.entry(&TTL, &found, Generation(0)));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut image = self.lock();
        let removed = image.step().and_then(|()| image.remove(parent.0, name));
        answer!(reply, removed, |()| reply.ok());
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut image = self.lock();
        let removed = image.step().and_then(|()| image.remove(parent.0, name));
        answer!(reply, removed, |()| reply.ok());
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to_parent: INodeNo,
        to: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut image = self.lock();
        let renamed = image.step().and_then(|()| image.rename(parent.0, name, to_parent.0, to));
        answer!(reply, renamed, |()| reply.ok());
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let image = self.lock();
        // Past the kernel's cache: what it would still show after a cut is gone.
        answer!(reply, image.alive(), |()| reply.opened(FileHandle(image.boot()), DIRECT));
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let mut image = self.lock();
        let mut make = || {
            image.step()?;
            let ino = image.make(parent.0, name, mode as u16 & 0o7777, Body::File(File::default()))?;
            attr(&image, ino)
        };
        let made = make();
        let handle = FileHandle(image.boot());
        answer!(reply, made, |found| reply.created(&TTL, &found, Generation(0), handle, DIRECT));
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = self.of_boot(fh).and_then(|image| image.read(ino.0, offset, size as usize));
        answer!(reply, read, |bytes: Vec<u8>| reply.data(&bytes));
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.of_boot(fh).and_then(|mut image| {
            image.step()?;
            image.write(ino.0, offset, data)
        });
        answer!(reply, written, |()| reply.written(data.len() as u32));
    }

    /// Not there: a file that is still open when its process ends must not wait for a server that is gone.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let synced = self.of_boot(fh).and_then(|mut image| {
            image.step()?;
            image.sync_file(ino.0, datasync)
        });
        answer!(reply, synced, |()| reply.ok());
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let image = self.lock();
        answer!(reply, image.alive(), |()| reply.opened(FileHandle(image.boot()), FopenFlags::empty()));
    }

    fn readdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.of_boot(fh).and_then(|image| Ok((image.entries(ino.0)?, image))) {
            Ok((entries, image)) => {
                for (index, (name, ino)) in entries.into_iter().enumerate().skip(offset as usize) {
                    let kind = if image.is_dir(ino) { FileType::Directory } else { FileType::RegularFile };
                    if reply.add(INodeNo(ino), index as u64 + 1, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(fault) => reply.error(errno(fault)),
        }
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, _: bool, reply: ReplyEmpty) {
        let synced = self.of_boot(fh).and_then(|mut image| {
            image.step()?;
            image.sync_dir(ino.0)
        });
        answer!(reply, synced, |()| reply.ok());
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, PAGE as u32, 255, PAGE as u32);
    }
}
