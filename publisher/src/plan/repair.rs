//! The devices of repair over verbs.

use std::collections::BTreeSet;

use tickcast_transport::host::interface::Interface;
use tickcast_transport::verbs::Device;

use crate::config::{Config, RepairVerbsConfig};
use crate::plan::{ChannelPlan, FanOutPlan};

/// Returns the interfaces of `repair_verbs`: those of the config, else those of the lines by verbs, else the
/// publisher's. None if repair is over TCP alone.
pub(crate) fn interfaces<'a>(
    config: &Config,
    channels: impl IntoIterator<Item = &'a ChannelPlan>,
) -> Vec<Interface> {
    let Some(verbs) = &config.repair_verbs else {
        return Vec::new();
    };
    let fan_outs = channels.into_iter().flat_map(|it| &it.fan_outs);
    let lines = fan_outs.flat_map(FanOutPlan::verbs_lines);
    chosen(verbs, lines.map(|line| &line.interface), &config.interface)
}

fn chosen<'a>(
    verbs: &RepairVerbsConfig,
    of_lines: impl Iterator<Item = &'a Interface>,
    of_publisher: &Interface,
) -> Vec<Interface> {
    if !verbs.interfaces.is_empty() {
        return verbs.interfaces.clone();
    }
    let mut interfaces = Vec::new();
    for interface in of_lines {
        if !interfaces.contains(interface) {
            interfaces.push(interface.clone());
        }
    }
    if interfaces.is_empty() {
        interfaces.push(of_publisher.clone());
    }
    interfaces
}

/// Warns of rings that a device of `repair_verbs` is known to be unable to offer for READ. Its subscribers
/// repair by NACK then. Opening reports a device that can't be used at all.
pub(super) fn check(config: &Config, channels: &[ChannelPlan], warnings: &mut Vec<String>) {
    if !config.repair_verbs.as_ref().is_some_and(|verbs| verbs.read) {
        return;
    }
    let interfaces = interfaces(config, channels).into_iter();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_interfaces_default_to_those_of_verbs_lines() {
        let all = ["eth0", "eth1", "10.0.0.1"].map(|it| it.parse::<Interface>().unwrap());
        let [a, b, own] = &all;
        let set = |verbs: &str| serde_json::from_str::<RepairVerbsConfig>(verbs).unwrap();
        let of_lines = || [a, b, a].into_iter();
        assert_eq!(chosen(&set("{}"), of_lines(), own), all[..2]);
        assert_eq!(chosen(&set("{}"), [].into_iter(), own), all[2..]);
        let given = set(r#"{ "interfaces": ["eth1"] }"#);
        assert_eq!(chosen(&given, of_lines(), own), all[1..2]);
    }
}
