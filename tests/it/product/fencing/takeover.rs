//! A writer loses its shard while it is frozen or dead: its uncommitted records are never visible.

use super::shard::FencedShard;
use super::writer::WriterProcess;
use crate::support::{Result, Shared, cycles};

crate::tests! {
    real a_writer_frozen_inside_its_batch_is_refused_all_of_it;
    real a_writer_frozen_before_its_first_batch_is_refused;
    real a_writer_frozen_between_batches_is_refused_the_second;
    real a_killed_writers_batch_stays_invisible_its_successor_writes within 120;
}

async fn a_writer_frozen_inside_its_batch_is_refused_all_of_it(shared: &'static Shared) -> Result<()> {
    let shard = FencedShard::create(shared.bootstrap(), "fencing-inside", &[]).await;
    let writer = WriterProcess::start(&shard).await?;
    writer.hold("frozen").await?;

    writer.freeze()?;
    let mut successor = shard.take().await;
    successor.commit(shard.batch("successor")).await.unwrap();
    writer.thaw()?;
    writer.release("frozen", "fenced").await?;

    successor.commit(shard.batch("later")).await.unwrap();
    assert_eq!(shard.batches().await, ["successor", "later"]);
    Ok(())
}

async fn a_writer_frozen_before_its_first_batch_is_refused(shared: &'static Shared) -> Result<()> {
    let shard = FencedShard::create(shared.bootstrap(), "fencing-before", &[]).await;
    let writer = WriterProcess::start(&shard).await?;

    writer.freeze()?;
    let mut successor = shard.take().await;
    successor.commit(shard.batch("successor")).await.unwrap();
    writer.thaw()?;
    writer.commit("frozen", "fenced").await?;

    assert_eq!(shard.batches().await, ["successor"]);
    Ok(())
}

async fn a_writer_frozen_between_batches_is_refused_the_second(shared: &'static Shared) -> Result<()> {
    let shard = FencedShard::create(shared.bootstrap(), "fencing-between", &[]).await;
    let writer = WriterProcess::start(&shard).await?;
    writer.commit("first", "committed").await?;

    writer.freeze()?;
    let mut successor = shard.take().await;
    successor.commit(shard.batch("successor")).await.unwrap();
    writer.thaw()?;
    writer.commit("second", "fenced").await?;
    // A fenced producer stays unusable and is not rebuilt.
    writer.commit("third", "over").await?;

    assert_eq!(shard.batches().await, ["first", "successor"]);
    Ok(())
}

async fn a_killed_writers_batch_stays_invisible_its_successor_writes(shared: &'static Shared) -> Result<()> {
    let shard = FencedShard::create(shared.bootstrap(), "fencing-killed", &[]).await;
    let mut expected = Vec::new();

    for cycle in 0..cycles("WRITERS", 2) {
        let writer = WriterProcess::start(&shard).await?;
        let committed = format!("committed-{cycle}");
        writer.commit(&committed, "committed").await?;
        writer.hold(&format!("open-{cycle}")).await?;
        writer.kill();
        expected.push(committed);
    }
    shard.take().await.commit(shard.batch("last")).await.unwrap();

    expected.push("last".to_owned());
    assert_eq!(shard.batches().await, expected);
    Ok(())
}
