//! JetStream's side of the seam: a server of its own, one file-backed stream without replicas, one producer.
//!
//! Acks are read by hand from one inbox, in the order of the stream, and checked against its sequence numbers: that
//! is faster than the client's future for each ack, and the peer is to be at its best.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use async_nats::jetstream::stream::{self, StorageType};
use async_nats::{Client, Message as Received, Subscriber};
use futures_util::{FutureExt, StreamExt};
use serde::Deserialize;
use tokio::runtime::Runtime;

use crate::log::{DurableLog, Feed};
use crate::server::{Server, SyncInterval};

const STREAM: &str = "EVENTS";
const SUBJECT: &str = "events";
/// Longest wait for one ack. A server that needs longer is broken, not slow.
const ACK_WAIT_MAX: Duration = Duration::from_secs(30);

/// How the producer is acked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publishing {
    /// An ack for each message, many in flight: what every client can do.
    Pipelined,
    /// Fast ingest (2.14 and later): the server acks once in so many messages.
    FastIngest,
}

/// A running server with an empty stream, and a connection to it.
pub(crate) struct JetStream {
    // Before the server, so that the connection is gone when the server goes.
    runtime: Runtime,
    client: Client,
    /// Sequence of the last message that was acked.
    sequence: u64,
    publishing: Publishing,
    server: Server,
}

impl JetStream {
    /// Starts a server under `dir` and makes the stream.
    pub(crate) fn start(
        binary: &Path,
        dir: &Path,
        sync: SyncInterval,
        publishing: Publishing,
    ) -> Result<Self> {
        let server = Server::start(binary, dir, sync)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("make a runtime")?;
        let client = runtime.block_on(async {
            let client = async_nats::connect(server.address()).await.context("connect to nats-server")?;
            let config = stream::Config {
                name: STREAM.into(),
                subjects: vec![SUBJECT.into()],
                storage: StorageType::File,
                num_replicas: 1,
                allow_batch_publish: publishing == Publishing::FastIngest,
                ..stream::Config::default()
            };
            async_nats::jetstream::new(client.clone())
                .create_stream(config)
                .await
                .context("make a stream")?;
            anyhow::Ok(client)
        })?;
        Ok(Self { runtime, client, sequence: 0, publishing, server })
    }
}

impl DurableLog for JetStream {
    fn publish_all(&mut self, feed: &mut Feed<'_>) -> Result<()> {
        let Self { runtime, client, sequence, publishing, .. } = self;
        runtime.block_on(async {
            match publishing {
                Publishing::Pipelined => pipelined(client, sequence, feed).await,
                Publishing::FastIngest => fast_ingest(client, feed).await,
            }
        })
    }

    fn server_pid(&self) -> Option<u32> {
        Some(self.server.pid())
    }
}

/// What the server answers to a publish.
#[derive(Deserialize)]
struct Ack {
    #[serde(default)]
    seq: u64,
    error: Option<async_nats::jetstream::Error>,
}

async fn pipelined(client: &Client, sequence: &mut u64, feed: &mut Feed<'_>) -> Result<()> {
    let inbox = client.new_inbox();
    let mut acks = client.subscribe(inbox.clone()).await.context("subscribe to acks")?;
    let inbox = async_nats::Subject::from(inbox);
    let subject = async_nats::Subject::from_static(SUBJECT);
    let before = *sequence;
    loop {
        while let Some(ack) = acks.next().now_or_never() {
            take_ack(ack, before, feed)?;
        }
        if feed.has_room()
            && let Some(message) = feed.next()
        {
            let publish = client.publish_with_reply(subject.clone(), inbox.clone(), message.bytes.clone());
            publish.await.context("publish")?;
        } else if feed.in_flight() > 0 {
            take_ack(next_ack(&mut acks).await?, before, feed)?;
        } else {
            *sequence = before + feed.acked();
            return Ok(());
        }
    }
}

fn take_ack(ack: Option<Received>, before: u64, feed: &mut Feed<'_>) -> Result<()> {
    let ack = ack.context("the connection closed")?;
    let parsed: Ack = serde_json::from_slice(&ack.payload).context("read an ack")?;
    if let Some(error) = parsed.error {
        bail!("JetStream refused a message: {error}");
    }
    let expected = before + feed.acked() + 1;
    ensure!(parsed.seq == expected, "ack of message {} where {expected} was expected", parsed.seq);
    feed.acked_through(feed.acked() + 1);
    Ok(())
}

async fn next_ack(acks: &mut Subscriber) -> Result<Option<Received>> {
    tokio::time::timeout(ACK_WAIT_MAX, acks.next()).await.map_err(|_| anyhow!("no ack in {ACK_WAIT_MAX:?}"))
}

/// What the server answers within a batch: flow acks have a type, the last ack has none.
#[derive(Deserialize)]
struct FlowAck {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    seq: u64,
    error: Option<async_nats::jetstream::Error>,
}

/// One batch for the whole feed, as ADR-50 has it: the reply subject carries the flow that is asked for, what to do
/// about a gap, the number in the batch, and the operation.
async fn fast_ingest(client: &Client, feed: &mut Feed<'_>) -> Result<()> {
    const START: u8 = 0;
    const APPEND: u8 = 1;
    const END: u8 = 3;
    // The protocol wants an inbox of two tokens.
    let inbox = client.new_inbox();
    let mut acks = client.subscribe(format!("{inbox}.>")).await.context("subscribe to acks")?;
    let subject = async_nats::Subject::from_static(SUBJECT);
    // Two acks a window: while one is on its way, the other half is published.
    let flow = (feed.window() / 2).clamp(1, u64::from(u16::MAX));
    let reply = |number: u64, operation: u8| format!("{inbox}.{flow}.fail.{number}.{operation}.$FI");
    let mut number = 0;
    loop {
        while let Some(ack) = acks.next().now_or_never() {
            take_flow_ack(ack, feed)?;
        }
        // The first message alone: its answer says whether the batch was taken at all.
        let begun = number == 0 || feed.acked() > 0;
        if begun
            && feed.has_room()
            && let Some(message) = feed.next()
        {
            number += 1;
            let operation = if number == 1 { START } else { APPEND };
            let publish =
                client.publish_with_reply(subject.clone(), reply(number, operation), message.bytes.clone());
            publish.await.context("publish")?;
            if number == 1 {
                // The answer to it covers no message yet: the first one is acked with the next that are.
                take_flow_ack(next_ack(&mut acks).await?, feed)?;
                feed.acked_through(1);
            }
            continue;
        }
        if feed.has_room() || feed.in_flight() == 0 {
            break;
        }
        take_flow_ack(next_ack(&mut acks).await?, feed)?;
    }
    if number == 0 {
        return Ok(());
    }
    // Ends the batch and asks for the ack of all of it.
    client
        .publish_with_reply(subject, reply(number + 1, END), bytes::Bytes::new())
        .await
        .context("end a batch")?;
    while feed.in_flight() > 0 {
        take_flow_ack(next_ack(&mut acks).await?, feed)?;
    }
    Ok(())
}

fn take_flow_ack(ack: Option<Received>, feed: &mut Feed<'_>) -> Result<()> {
    let ack = ack.context("the connection closed")?;
    let parsed: FlowAck = serde_json::from_slice(&ack.payload).context("read an ack")?;
    if let Some(error) = parsed.error {
        bail!("JetStream refused a batch: {error}");
    }
    match parsed.kind.as_deref() {
        Some("ack") => feed.acked_through(parsed.seq),
        // The end of the batch: all of it is stored.
        None => feed.acked_through(feed.acked() + feed.in_flight()),
        Some(other) => bail!("JetStream sent {other} within a batch"),
    }
    Ok(())
}
