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

    /// Whether the block is this worker's own, on a medium that is known, and of full attention: only such blocks
    /// count when a prompt is matched. Others are kept and relayed, since other consumers read them.
    pub fn is_own_full_attention(&self) -> bool {
        let full = |kind: &str| matches!(kind, "full_attention" | "mla_attention" | "sink_full_attention");
        self.group.is_none_or(|group| group == 0)
            && self.kind.as_deref().is_none_or(full)
            && self.locality.as_deref().is_none_or(|locality| locality.eq_ignore_ascii_case("LOCAL"))
            && self.ownership.is_none()
            && self.tier().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(medium: &str) -> Placement {
        Placement { medium: Some(medium.into()), ..Placement::default() }
    }

    #[test]
    fn media_are_known_in_any_case() {
        for (medium, tier) in [
            ("GPU", StorageTier::Device),
            ("gpu", StorageTier::Device),
            ("CPU", StorageTier::HostPinned),
            ("cpu_pinned", StorageTier::HostPinned),
            ("Disk", StorageTier::Disk),
            ("STORAGE", StorageTier::Disk),
            ("fs", StorageTier::Disk),
            ("OBJ", StorageTier::External),
            ("external", StorageTier::External),
        ] {
            assert_eq!(on(medium).tier(), Some(tier), "{medium}");
        }
        assert_eq!(Placement::default().tier(), Some(StorageTier::Device));
        assert_eq!(on("TAPE").tier(), None);
    }

    #[test]
    fn only_the_worker_s_own_full_attention_blocks_count() {
        let counts = |change: fn(&mut Placement)| {
            let mut placement = on("GPU");
            change(&mut placement);
            placement.is_own_full_attention()
        };
        assert!(counts(|_| {}));
        assert!(counts(|p| p.group = Some(0)));
        assert!(!counts(|p| p.group = Some(1)));
        assert!(counts(|p| p.kind = Some("mla_attention".into())));
        assert!(!counts(|p| p.kind = Some("sliding_window".into())));
        assert!(counts(|p| p.locality = Some("local".into())));
        assert!(!counts(|p| p.locality = Some("REMOTE".into())));
        assert!(!counts(|p| p.ownership = Some("other".into())));
        assert!(!counts(|p| p.medium = Some("TAPE".into())));
    }
}
