//! The devices of repair over verbs.

use std::collections::BTreeSet;

use tickcast_transport::verbs::Device;

use crate::config::Config;
use crate::plan::ChannelPlan;

/// Warns of rings that a device of `repair_verbs` is known to be unable to offer for READ. Its subscribers
/// repair by NACK then. Opening reports a device that can't be used at all.
pub(super) fn check(config: &Config, channels: &[ChannelPlan], warnings: &mut Vec<String>) {
    if !config.repair_verbs.as_ref().is_some_and(|verbs| verbs.read) {
        return;
    }
    let interfaces = config.repair_interfaces().into_iter();
    let addresses: BTreeSet<_> = interfaces
        .filter_map(|it| it.resolve().ok())
        .map(|it| it.address)
        .collect();
    for device in addresses.into_iter().filter_map(|it| Device::open(it).ok()) {
        for channel in channels {
            if let Err(error) = device.check_window(channel.geometry.bytes()) {
                let (name, device) = (&channel.name, device.name());
                warnings.push(format!(
                    "channel {name}: its ring is not offered for READ on {device}: {error}"
                ));
            }
        }
    }
}
