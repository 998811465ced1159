//! A file system that forgets: writes stay in its memory until they are synced, and a power cut takes the rest, all of
//! it or a random part, torn at sector size. It can also refuse: once on fsync, or for want of space.
//!
//! What it models is what ext4 promises, no more: `fsync` and `fdatasync` of a file make its pages and size durable,
//! `fsync` of a folder makes its names durable, and nothing else does. Of unsynced changes to a folder's names a
//! random prefix stays; of unsynced pages a random subset. A failed fsync leaves pages marked clean that never
//! reached the disk.

mod image;
mod serve;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{BackgroundSession, Config, MountOption};

use image::Image;
pub use image::Policy;
use serve::Served;

/// A mounted file system. Dropping it unmounts.
pub struct PowerFs {
    image: Arc<Mutex<Image>>,
    session: Option<BackgroundSession>,
    mountpoint: tempfile::TempDir,
}

impl PowerFs {
    /// Mounts one, or says why that cannot be done here.
    pub fn mount() -> Result<Self, String> {
        let image = Arc::new(Mutex::new(Image::default()));
        let mountpoint = tempfile::tempdir().map_err(|e| e.to_string())?;
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("powerfs".into()), MountOption::NoAtime];
        let served = Served::new(Arc::clone(&image));
        let session = fuser::spawn_mount(served, mountpoint.path(), &config).map_err(|e| e.to_string())?;
        Ok(Self { image, session: Some(session), mountpoint })
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.mountpoint.path().to_owned()
    }

    /// Cuts the power within the `operations`-th change or sync from now: it and all after it fail until
    /// [`reboot`](Self::reboot).
    pub fn cut_at(&self, operations: u64) {
        self.lock().cut_at(operations);
    }

    /// Whether the power was cut.
    pub fn is_cut(&self) -> bool {
        self.lock().is_cut()
    }

    /// Cuts the power, if it was not, forgets what the policy takes, and starts anew.
    pub fn reboot(&self, policy: Policy, seed: u64) {
        self.lock().reboot(policy, seed);
    }

    /// The next fsync of a file whose name ends so fails once with EIO.
    pub fn fail_next_fsync(&self, name: &str) {
        self.lock().fail_fsync = Some(name.to_owned());
    }

    /// Lets `fdatasync` succeed without making anything durable.
    pub fn ignore_fdatasync(&self, ignore: bool) {
        self.lock().ignore_fdatasync = ignore;
    }

    /// Changes and syncs so far.
    pub fn operations(&self) -> u64 {
        self.lock().operations()
    }

    fn lock(&self) -> MutexGuard<'_, Image> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PowerFs {
    fn drop(&mut self) {
        // A lazy unmount first: a handle that is still open somewhere must not keep the mount.
        let path: &Path = self.mountpoint.path();
        let _already_gone = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
        drop(self.session.take());
    }
}
