//! Offsets edited on one worker while another resumes the connector: one of the two comes first, and each is applied whole.

use serde_json::json;
use tributary::config::connector::TargetState;

use super::worker::{Group, config};
use crate::support::{Result, Shared, cycles};

crate::tests! {
    real an_offset_edit_and_a_resume_at_once_are_serialized within 120;
}

async fn an_offset_edit_and_a_resume_at_once_are_serialized(shared: &'static Shared) -> Result<()> {
    let group = Group::new(shared.bootstrap(), "offset-race");
    let (one, two) = (group.worker().await, group.worker().await);
    one.ask("PUT", "/connectors/o/config", Some(config("offset-race"))).await;

    for round in 1..=cycles("OFFSETS", 2) {
        assert_eq!(one.ask("PUT", "/connectors/o/stop", None).await.status, 204);
        let before = one.get("/connectors/o/offsets").await.body;
        let wanted = json!({"offsets": [
            {"partition": {"topic": "a", "partition": 0}, "offset": {"position": round}},
            {"partition": {"topic": "b", "partition": 1}, "offset": {"position": round}},
        ]});

        let (edited, resumed) = tokio::join!(
            one.ask("PATCH", "/connectors/o/offsets", Some(wanted.clone())),
            two.ask("PUT", "/connectors/o/resume", None),
        );

        assert_eq!(resumed.status, 202, "{resumed:?}");
        one.state.configs.read_to_end(crate::support::topics::LIMIT).await.unwrap();
        one.state.offsets.read_to_end(crate::support::topics::LIMIT).await.unwrap();
        let target = one.state.configs.read(|configs| configs.connectors()["o"].target);
        assert_eq!(target, TargetState::Running, "the edit undid the resume");
        let after = one.get("/connectors/o/offsets").await.body;
        match edited.status {
            200 => assert_eq!(after, wanted, "round {round}"),
            // The connector was resumed before the check, or between check and write.
            400 | 409 => assert_eq!(after, before, "round {round}"),
            _ => panic!("round {round}: {edited:?}"),
        }
    }
    Ok(())
}
