//! The bus inside one process: bounded channels between a Cortex and its one Hive.

use overmind_core::Fut;
use overmind_core::bus::{BUS_VERSION, BusError, CortexBus, Envelope, HiveBus, ToCortex, ToHive};
use overmind_core::ids::HiveId;
use tokio::sync::{Mutex, mpsc};

/// Maximum number of messages that wait in each direction; then the sender waits.
const WAITING: usize = 1024;

/// Makes both ends for `hive`.
pub fn local(hive: HiveId) -> (LocalCortexBus, LocalHiveBus) {
    let (to_hive, hive_in) = mpsc::channel(WAITING);
    let (to_cortex, cortex_in) = mpsc::channel(WAITING);
    (
        LocalCortexBus { hive, to_hive, inbox: Mutex::new(cortex_in) },
        LocalHiveBus { hive, to_cortex, inbox: Mutex::new(hive_in) },
    )
}

/// The Cortex's end.
#[derive(Debug)]
pub struct LocalCortexBus {
    hive: HiveId,
    to_hive: mpsc::Sender<Envelope<ToHive>>,
    // It is async because it is held while waiting for the next message; there is one receiver.
    inbox: Mutex<mpsc::Receiver<Envelope<ToCortex>>>,
}

/// The Hive's end.
#[derive(Debug)]
pub struct LocalHiveBus {
    hive: HiveId,
    to_cortex: mpsc::Sender<Envelope<ToCortex>>,
    inbox: Mutex<mpsc::Receiver<Envelope<ToHive>>>,
}

impl CortexBus for LocalCortexBus {
    fn send(&self, hive: HiveId, body: ToHive) -> Fut<'_, Result<(), BusError>> {
        Box::pin(async move {
            if hive != self.hive {
                return Err(BusError::NoHive { hive });
            }
            let message = Envelope { version: BUS_VERSION, hive, body };
            self.to_hive.send(message).await.map_err(|_| BusError::Closed)
        })
    }

    fn receive(&self) -> Fut<'_, Option<Envelope<ToCortex>>> {
        Box::pin(async move { self.inbox.lock().await.recv().await })
    }
}

impl HiveBus for LocalHiveBus {
    fn send(&self, body: ToCortex) -> Fut<'_, Result<(), BusError>> {
        Box::pin(async move {
            let message = Envelope { version: BUS_VERSION, hive: self.hive, body };
            self.to_cortex.send(message).await.map_err(|_| BusError::Closed)
        })
    }

    fn receive(&self) -> Fut<'_, Option<Envelope<ToHive>>> {
        Box::pin(async move { self.inbox.lock().await.recv().await })
    }
}
