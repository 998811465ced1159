mod events; mod jetstream; mod log; mod probe; mod product; mod server; mod stats; mod usage;
use std::time::Duration; use log::*; use jetstream::*; use server::*;
fn main() -> anyhow::Result<()> {
    let bin = server::find()?; println!("{}", server::version(&bin)?);
    let ev = events::stand_in(100_000, 1); let msgs = events::as_messages(&ev)?; let frames = events::as_frames(&ev)?;
    println!("mean {} frames {}", msgs.iter().map(|m| m.bytes.len()).sum::<usize>()/msgs.len(), frames.len());
    let base = std::path::Path::new("target/run"); std::fs::create_dir_all(base)?; let base = base.canonicalize()?;
    let d = probe::probe(&base, probe::ProbeLimits{writes:200,time:Duration::from_secs(2)})?; println!("{d:?}");
    let run = |name: &str, log: &mut dyn DurableLog, msgs: &[Message], window: u64| -> anyhow::Result<()> {
        let u0 = usage::Usage::now(log.server_pid())?;
        let mut f = Feed::start(msgs, Limits{messages: 3_000_000, time: Duration::from_secs(1), window});
        log.publish_all(&mut f)?; let mut t = f.finish(); t.latencies_ns.sort();
        let u = usage::Usage::now(log.server_pid())? - u0;
        println!("{name:28} w {window:6} {:9.0} ev/s p50 {:8.2} p99 {:8.2} ms cpu {:.2} s/M written {:.0} MB/M unacked {}", t.events as f64/t.elapsed.as_secs_f64(), stats::percentile(&t.latencies_ns,0.5) as f64/1e6, stats::percentile(&t.latencies_ns,0.99) as f64/1e6, u.cpu_seconds*1e6/t.events as f64, u.written_bytes as f64/t.events as f64, t.unacked); Ok(())
    };
    for w in [64, 1024, 4096, 16384] { let dir = tempfile::tempdir_in(&base)?; let mut p = product::Product::open(dir.path())?; run("product", &mut p, &msgs, w)?; }
    for (s, n) in [(SyncInterval::Always, "always"), (SyncInterval::Default, "default")] { for p in [Publishing::Pipelined, Publishing::FastIngest] { for w in [1, 8, 64, 512, 2048, 8192] {
        let dir = tempfile::tempdir_in(&base)?; let mut j = JetStream::start(&bin, dir.path(), s, p)?;
        if let Err(e) = run(&format!("{n} {p:?}"), &mut j, &msgs, w) { println!("{n} {p:?} {w}: {e:#}"); }
    }}
    for w in [1, 2, 4, 16, 64] { let dir = tempfile::tempdir_in(&base)?; let mut j = JetStream::start(&bin, dir.path(), s, Publishing::Pipelined)?; run(&format!("{n} frames"), &mut j, &frames, w)?; } }
    Ok(())
}
