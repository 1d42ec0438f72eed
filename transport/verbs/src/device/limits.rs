//! Limits of a device for memory windows, which grants of READ, WRITE and cursors need.

use crate::device::sys;
use crate::error::VerbsError;

/// Capabilities of `ibv_device_cap_flags`: windows of type 2, in one of two kinds. A peer's access through
/// either is bound to its queue pair.
const WINDOW_TYPE_2A: u32 = 1 << 23;
const WINDOW_TYPE_2B: u32 = 1 << 24;
/// NVIDIA, whose devices refuse to bind a longer window than this, in bytes (rdma-core, `providers/mlx5`).
const NVIDIA: u32 = 0x02c9;
const NVIDIA_WINDOW_MAX: usize = 2 << 30;

/// Limits of a device for memory windows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowLimits {
    /// Number of windows. 0: the device has none of type 2.
    windows_max: u32,
    /// Length of the longest window, in bytes.
    len_max: usize,
}

impl WindowLimits {
    /// Returns the limits that a device reports.
    pub(crate) fn of(attributes: &sys::ibv_device_attr) -> Self {
        let has_type_2 = attributes.device_cap_flags & (WINDOW_TYPE_2A | WINDOW_TYPE_2B) != 0;
        let windows = u32::try_from(attributes.max_mw).unwrap_or(0);
        // A window lies within one registration. 0 is no limit that a device could mean.
        let region_max = match attributes.max_mr_size {
            0 => usize::MAX,
            bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
        };
        Self {
            windows_max: if has_type_2 { windows } else { 0 },
            len_max: match attributes.vendor_id {
                NVIDIA => NVIDIA_WINDOW_MAX.min(region_max),
                _ => region_max,
            },
        }
    }

    /// Checks that a window of `len` bytes can be bound. A bind that fails ends its connection, and the
    /// next connection would request the same again.
    ///
    /// # Errors
    /// - [`VerbsError::NoWindows`] if the device has no windows of type 2
    /// - [`VerbsError::WindowTooLong`] if the window is too long for the device
    pub(crate) fn check(&self, device: &str, len: usize) -> Result<(), VerbsError> {
        let device = || device.to_owned();
        if self.windows_max == 0 {
            return Err(VerbsError::NoWindows { device: device() });
        }
        if len > self.len_max {
            let (device, max) = (device(), self.len_max);
            return Err(VerbsError::WindowTooLong { device, len, max });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(flags: u32, windows: i32, vendor: u32) -> WindowLimits {
        // SAFETY: zero is a value of every field, they are numbers.
        let mut attributes: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        attributes.device_cap_flags = flags;
        attributes.max_mw = windows;
        attributes.vendor_id = vendor;
        WindowLimits::of(&attributes)
    }

    #[test]
    fn device_without_type_2_windows_is_refused() {
        for (flags, windows) in [
            (0, 100),
            (1 << 17, 100),
            (WINDOW_TYPE_2B, 0),
            (WINDOW_TYPE_2A, -1),
        ] {
            let refused = limits(flags, windows, 0).check("mlx4_0", 64);
            assert!(
                matches!(refused, Err(VerbsError::NoWindows { .. })),
                "{flags}"
            );
        }
        for flags in [WINDOW_TYPE_2A, WINDOW_TYPE_2B] {
            assert!(limits(flags, 1, 0).check("rxe0", usize::MAX).is_ok());
        }
    }

    #[test]
    fn window_beyond_the_longest_registration_is_refused() {
        // SAFETY: zero is a value of every field, they are numbers.
        let mut attributes: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        (attributes.device_cap_flags, attributes.max_mw) = (WINDOW_TYPE_2B, 9);
        attributes.max_mr_size = 1 << 20;
        let limits = WindowLimits::of(&attributes);
        assert!(limits.check("rxe0", 1 << 20).is_ok());
        let refused = limits.check("rxe0", (1 << 20) + 1);
        assert!(matches!(
            refused,
            Err(VerbsError::WindowTooLong { max: 1_048_576, .. })
        ));
    }

    #[test]
    fn window_beyond_two_gib_is_refused_by_nvidia_alone() {
        let (card, other) = (
            limits(WINDOW_TYPE_2B, 9, 0x02c9),
            limits(WINDOW_TYPE_2B, 9, 0x14e4),
        );
        assert!(card.check("mlx5_0", 2 << 30).is_ok());
        assert!(other.check("bnxt_re0", (2 << 30) + 1).is_ok());
        let text = card.check("mlx5_0", (2 << 30) + 1).unwrap_err().to_string();
        assert!(
            text.contains("mlx5_0") && text.contains("2147483649"),
            "{text}"
        );
        assert!(text.contains("slots"), "the remedy: {text}");
    }
}
