//! Standbys: subscribers that keep a mirror of each channel.

use std::sync::Arc;

use tickcast_reliability::control::ChannelOffer;
use tickcast_reliability::delivery::Item;
use tickcast_reliability::receive::{Mirror, MirrorHost};
use tickcast_reliability::ring::HeapMemory;
use tickcast_reliability::session::SubscriberInput;
use tickcast_reliability::types::{ChannelId, ConfigHash, Nanos};

use crate::actors::subscriber::Subscriber;
use crate::faults::plan::Plan;
use crate::feed::torn_copy;

impl Subscriber {
    /// Creates the mirror of a channel, as the driver does, unless a mirror that fits this offer
    /// exists.
    ///
    /// # Errors
    /// An offer that can't be mirrored, or a core that takes no mirror for the channel.
    pub(crate) fn keeps_mirror(
        &mut self,
        now: Nanos,
        plan: &Plan,
        offer: &ChannelOffer,
    ) -> Result<(), String> {
        let known = self.core.mirror(offer.channel);
        if known.is_some_and(|mirror| mirror.fits(offer)) {
            return Ok(());
        }
        let geometry = Mirror::geometry_of(offer).map_err(|e| e.to_string())?;
        let memory = HeapMemory::interrupted(geometry, torn_copy::interrupt);
        let host = MirrorHost {
            fan_outs: plan.fan_outs,
            boot_id: [2; 16],
            config_hash: ConfigHash(1),
        };
        let mirror = Mirror::create(Arc::new(memory), offer, host).map_err(|e| e.to_string())?;
        let mut mirror = Some(mirror);
        let mirror = SubscriberInput::Mirror(offer.channel, &mut mirror);
        self.core.handle(now, mirror, &mut |_: Item<'_>| ());
        match self.core.mirror(offer.channel) {
            Some(_) => Ok(()),
            None => Err("a channel that was welcomed takes no mirror".into()),
        }
    }

    /// Takes the mirrors of all channels. Returns `None`, without effect, when one can't be
    /// promoted.
    pub(crate) fn take_mirrors(&mut self) -> Option<Vec<Mirror>> {
        let channels: Vec<ChannelId> = self.following.iter().map(|of| of.channel).collect();
        let is_ready = |channel: &ChannelId| {
            let mirror = self.core.mirror(*channel);
            mirror.is_some_and(|mirror| mirror.mirrored().next_record.0 != 0)
        };
        if !channels.iter().all(is_ready) {
            return None;
        }
        (channels.into_iter())
            .map(|channel| self.core.take_mirror(channel))
            .collect()
    }
}
