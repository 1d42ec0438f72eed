//! iceoryx2 within one host: a publisher that waits for a full subscriber buffer, and a subscriber that
//! polls. A sample is a tick.

use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::update_connections::UpdateConnections;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::PortFactory as _;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;

use crate::protocol::{Outcome, TICK_LEN, Task, Tick};
use crate::side::{Carry, Take};

type Sample = [u8; TICK_LEN];
type Service = ipc::Service;

/// Maximum number of samples in a subscriber's buffer.
const BUFFER: usize = 4_096;

fn service(task: &Task, way: usize) -> Outcome<(Node<Service>, PortFactory<Service, Sample, ()>)> {
    set_log_level(LogLevel::Error);
    let node = NodeBuilder::new().create::<Service>()?;
    let name = format!("{}-{way}", task.folder.display());
    let service = node
        .service_builder(&ServiceName::new(&name)?)
        .publish_subscribe::<Sample>()
        .enable_safe_overflow(false)
        .history_size(0)
        .subscriber_max_buffer_size(BUFFER)
        .subscriber_max_borrowed_samples(2)
        .max_publishers(1)
        .max_subscribers(task.receivers.max(1))
        .open_or_create()?;
    Ok((node, service))
}

/// Publishes ticks.
pub(crate) struct Sender {
    publisher: Publisher<Service, Sample, ()>,
    service: PortFactory<Service, Sample, ()>,
    receivers: usize,
    _node: Node<Service>,
}

impl Sender {
    pub(crate) fn open(task: &Task, way: usize) -> Outcome<Self> {
        let (node, service) = service(task, way)?;
        let publisher = service
            .publisher_builder()
            .max_loaned_samples(2)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()?;
        Ok(Self {
            publisher,
            service,
            receivers: task.receivers,
            _node: node,
        })
    }
}

impl Carry for Sender {
    fn address(&self) -> String {
        String::new()
    }

    fn is_joined(&mut self) -> bool {
        let joined = self.service.dynamic_config().number_of_subscribers();
        // The publisher detects new subscribers only when asked to, or when it sends.
        self.publisher.update_connections().is_ok() && joined >= self.receivers
    }

    #[inline]
    fn publish(&mut self, tick: Tick) -> Outcome<bool> {
        let mut bytes = [0; TICK_LEN];
        tick.write(&mut bytes);
        let sample = self.publisher.loan_uninit()?;
        sample.write_payload(bytes).send()?;
        Ok(true)
    }

    fn drive(&mut self) -> Outcome<()> {
        Ok(())
    }

    fn received(&self) -> Option<u64> {
        None
    }
}

/// Receives ticks.
pub(crate) struct Receiver {
    subscriber: Subscriber<Service, Sample, ()>,
    service: PortFactory<Service, Sample, ()>,
    _node: Node<Service>,
}

impl Receiver {
    pub(crate) fn open(task: &Task, way: usize) -> Outcome<Self> {
        let (node, service) = service(task, way)?;
        let subscriber = service.subscriber_builder().buffer_size(BUFFER).create()?;
        Ok(Self {
            subscriber,
            service,
            _node: node,
        })
    }
}

impl Take for Receiver {
    fn is_joined(&mut self) -> bool {
        self.service.dynamic_config().number_of_publishers() > 0
    }

    #[inline]
    fn poll(&mut self, mut on: impl FnMut(Option<Tick>, bool)) -> Outcome<bool> {
        let mut came = false;
        for _ in 0..BUFFER {
            let Some(sample) = self.subscriber.receive()? else {
                break;
            };
            came = true;
            on(Tick::read(sample.payload()), false);
        }
        Ok(came)
    }

    fn received(&mut self, _: u64) {}
}
