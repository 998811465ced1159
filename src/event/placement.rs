//! Where a block is: the medium as the engine wrote it, and which group, locality and owner it belongs to.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// A class of storage, from the fastest down.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum StorageTier {
    /// The accelerator's own memory.
    #[default]
    Device,
    /// Host memory.
    HostPinned,
    /// Local disk.
    Disk,
    /// A store outside this host.
    External,
}

/// Where a block is. Copies of a block are counted apart for each placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(default)]
pub struct Placement {
    /// The medium as the engine wrote it (`GPU`, `cpu`, `DISK` ...). `None`: the engine named none, which means
    /// its device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub medium: Option<String>,
    /// KV cache group of a hybrid model. `None` and 0 are the full-attention group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// Kind of attention of that group (`full_attention`, `sliding_window`, `mamba` ...), as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `LOCAL` or `REMOTE`, as written. `None` means local.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<String>,
    /// Who owns the block, as written. `None` means the worker itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ownership: Option<String>,
}

impl Placement {
    /// Whether nothing was said about the place: the worker's device, full attention.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The storage tier of the medium, whatever the case of its letters; `None` for a medium nobody has named
    /// yet, whose blocks are kept but not matched.
    pub fn tier(&self) -> Option<StorageTier> {
        let Some(medium) = &self.medium else { return Some(StorageTier::Device) };
        match medium.to_ascii_uppercase().as_str() {
            "GPU" => Some(StorageTier::Device),
            "CPU" | "CPU_PINNED" => Some(StorageTier::HostPinned),
            "DISK" | "STORAGE" | "FS" => Some(StorageTier::Disk),
            "OBJ" | "EXTERNAL" => Some(StorageTier::External),
            _ => None,
        }
    }
}
