//! Verbs on a real device. All but `layout` need one, so `make test-rdma` runs them in its virtual
//! machine (tests/lab), each suite with the modules that it names. The address of the device is
//! `TICKCAST_RDMA_ADDRESS`.

mod control;
mod cursor;
mod datagrams;
mod device;
mod hostile;
mod layout;
mod lost;
mod ports;
mod probe;
mod read;
mod stream;
mod stuck;
mod torn;
mod window;
