//! Records that Kafka holds: each is read, and written again with the same members.

use std::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{AccountingEvent, Certificate, InvoicingEvent, Run, RunProgress, Subscription};

#[track_caller]
fn is_kept<T: DeserializeOwned + Serialize + Debug + PartialEq>(written: &str) {
    let written: Value = serde_json::from_str(written).unwrap();

    let read: T = serde_json::from_value(written.clone()).unwrap();

    assert_eq!(serde_json::to_value(&read).unwrap(), written);
    let mut later = written.clone();
    later["ofALaterVersion"] = true.into();
    assert_eq!(serde_json::from_value::<T>(later).unwrap(), read, "unknown members are ignored");
    assert_eq!(serde_json::from_str::<T>(&written.to_string()).unwrap(), read);
}

/// Every member but these is required.
#[track_caller]
fn needs_all_but<T: DeserializeOwned>(written: &str, optional: &[&str]) {
    let Value::Object(written) = serde_json::from_str(written).unwrap() else { panic!("no object") };
    for name in written.keys() {
        let mut without = written.clone();
        without.remove(name);
        let read = serde_json::from_value::<T>(Value::Object(without));
        assert_eq!(read.is_ok(), optional.contains(&name.as_str()), "without {name}");
    }
}

const PROGRESS: &str = r#"{"connector":"records","run":"r-1","shard":3,"requestedAt":11,"state":"paused","reason":"brake",
    "filter":"lastUpdate gt 5","lists":21,"ended":22,"certified":23,"requests":24,"brakedAt":12,"pages":25,"rows":26,
    "published":27,"vanished":18446744073709551615,"differences":{"missing":28,"ahead":29},"repaired":{"behind":30},
    "contents":31,"disabled":32,"unread":33,"absent":34,"unoffered":35,"accountsProved":true,"companiesProved":true,
    "current":[{"company":"acme-1","list":"customers","pass":2,"pages":36,"rows":37,"of":38},
               {"list":"payroll","pass":1,"pages":0,"rows":0}],
    "startedAt":-13,"updatedAt":14,"endedAt":15}"#;

#[test]
fn progress_keeps_its_members() {
    is_kept::<RunProgress>(PROGRESS);
    needs_all_but::<RunProgress>(
        PROGRESS,
        &[
            "requestedAt",
            "reason",
            "filter",
            "requests",
            "brakedAt",
            "differences",
            "repaired",
            "contents",
            "disabled",
            "unread",
            "absent",
            "unoffered",
            "accountsProved",
            "companiesProved",
            "current",
            "endedAt",
        ],
    );
    is_kept::<RunProgress>(
        r#"{"connector":"records","run":"r-1","shard":0,"requestedAt":0,"state":"running","lists":0,"ended":0,"certified":0,
        "requests":0,"pages":0,"rows":0,"published":0,"vanished":0,"contents":0,"disabled":0,"unread":0,"absent":0,
        "startedAt":1,"updatedAt":1}"#,
    );
}

const SUBSCRIPTION: &str = r#"{"connector":"hooks","target":"invoicing/Customer:Created","nonce":"0123456789abcdef","id":"h-1",
    "application":"tributary","url":"https://hooks.example.com/a","spelled":"https://HOOKS.example.com/a",
    "fingerprint":"fedcba9876543210","events":["Svc.ACC.A","Svc.ACC.B"],"phase":"disabled","since":1,"intendedAt":2,
    "acknowledgedAt":3,"activeSince":4,"checkedAt":5,"lastDelivery":6,"problem":"gone",
    "history":[{"at":7,"what":"intended"},{"at":8,"what":"active"}]}"#;

#[test]
fn subscription_keeps_its_members() {
    is_kept::<Subscription>(SUBSCRIPTION);
    needs_all_but::<Subscription>(
        SUBSCRIPTION,
        &[
            "id",
            "spelled",
            "events",
            "acknowledgedAt",
            "activeSince",
            "checkedAt",
            "lastDelivery",
            "problem",
            "history",
        ],
    );
    is_kept::<Subscription>(
        r#"{"connector":"hooks","target":"accounting/customers","nonce":"0000000000000007","application":"tributary",
        "url":"","fingerprint":"fedcba9876543210","phase":"intended","since":1,"intendedAt":1}"#,
    );
}

const RUN: &str = r#"{"connector":"records","id":"r-1","kind":"verify","lists":["customers","payroll"],
    "companies":["acme-1","acme-2"],"known":["suppliers"],"incremental":true,"sample":4294967295,"repair":true,
    "requestedBy":"rest","requestedAt":9}"#;

#[test]
fn run_keeps_its_members() {
    is_kept::<Run>(RUN);
    needs_all_but::<Run>(RUN, &["kind", "companies", "known", "incremental", "sample", "repair"]);
    is_kept::<Run>(
        r#"{"connector":"records","id":"r-1","kind":"snapshot","lists":[],"incremental":false,"requestedBy":"initial",
        "requestedAt":9}"#,
    );
}

const CERTIFICATE: &str = r#"{"connector":"records","run":"r-1","list":"customers","companyId":"acme-1","shard":4,
    "certified":true,"method":"counting","reason":"why","passes":1,"pageSize":2,"pageBase":3,"pages":5,"rows":6,
    "published":7,"listed":8,"distinct":9,"gone":10,"found":11,"missingAtMost":12,"reportedTotal":13,"failedPage":14,
    "cutAfter":15,"cutBefore":16,"startedAt":17,"endedAt":18,"vanishedCount":19,"vanished":["c-1",""],"unlisted":20,
    "unreadable":9223372036854775807,"requestedBy":"rest","stream":"verified","filter":"lastUpdate gt 5",
    "anomalies":["page 2 has more rows"]}"#;

#[test]
fn certificate_keeps_its_members() {
    is_kept::<Certificate>(CERTIFICATE);
    needs_all_but::<Certificate>(
        CERTIFICATE,
        &[
            "companyId",
            "shard",
            "reason",
            "pageBase",
            "listed",
            "distinct",
            "gone",
            "found",
            "missingAtMost",
            "reportedTotal",
            "failedPage",
            "cutAfter",
            "cutBefore",
            "requestedBy",
            "stream",
            "filter",
            "anomalies",
        ],
    );
    is_kept::<Certificate>(
        r#"{"connector":"records","run":"r-1","list":"payroll","companyId":null,"shard":null,"certified":false,
        "method":"none","reason":null,"passes":0,"pageSize":0,"pageBase":null,"pages":0,"rows":0,"published":0,
        "listed":null,"distinct":null,"gone":null,"found":null,"missingAtMost":null,"reportedTotal":null,
        "failedPage":null,"cutAfter":null,"cutBefore":null,"startedAt":1,"endedAt":1,"vanishedCount":0,"vanished":[],
        "unlisted":0,"unreadable":0,"requestedBy":null,"stream":null,"filter":null,"anomalies":[]}"#,
    );
}

const ACCOUNTING_EVENT: &str = r#"{"connector":"hooks","resource":"customers","receivedAt":1,"companyId":"acme-1",
    "webhookId":"w","outgoingId":"o","conversationId":"c","tenantId":"t",
    "extraPartitionInformation":{"partitionClientId":"acme-1","userName":"Ann","extra":{"More":"1"}},
    "eventType":{"appName":"Svc","domain":"ACC","resource":"Customers","eventType":"CustomerUpdated",
                 "semanticName":"Svc.ACC.Customers.CustomerUpdated","extra":{}},
    "timestamp":638987654321234567,"timestampAt":-2,"jsonData":"{}","correlationId":"c-9","version":"today",
    "sequenceVersion":"0042","sequence":42,"svcSourceInterface":"i","svcProcessId":"p","svcSourceAction":"a",
    "userIdentifier":"u","extra":{"$id":"\"1\"","n":"1.50"}}"#;

#[test]
fn accounting_event_keeps_its_members() {
    is_kept::<AccountingEvent>(ACCOUNTING_EVENT);
    needs_all_but::<AccountingEvent>(
        ACCOUNTING_EVENT,
        &[
            "companyId",
            "webhookId",
            "outgoingId",
            "conversationId",
            "tenantId",
            "extraPartitionInformation",
            "eventType",
            "timestamp",
            "timestampAt",
            "jsonData",
            "correlationId",
            "version",
            "sequenceVersion",
            "sequence",
            "svcSourceInterface",
            "svcProcessId",
            "svcSourceAction",
            "userIdentifier",
        ],
    );
    is_kept::<AccountingEvent>(
        r#"{"connector":"hooks","resource":"input-invoices","receivedAt":1,"companyId":null,"webhookId":null,
        "outgoingId":null,"conversationId":null,"tenantId":null,"extraPartitionInformation":null,"eventType":null,
        "timestamp":null,"timestampAt":null,"jsonData":null,"correlationId":null,"version":null,"sequenceVersion":null,
        "sequence":null,"svcSourceInterface":null,"svcProcessId":null,"svcSourceAction":null,"userIdentifier":null,
        "extra":{}}"#,
    );
}

const INVOICING_EVENT: &str = r#"{"connector":"hooks","resource":"sale-invoice","receivedAt":1,"companyId":"acme-1",
    "action":"updated","entity":"SaleInvoice","entityId":"e","tenantId":"t","user":"u",
    "changes":[{"name":"City","value":"Zug","extra":{"Old":"null"}},{"name":null,"value":null,"extra":{}}],"host":"h",
    "sourceApplication":"s","providerAction":"SaleInvoiceUpdated",
    "envelope":{"id":"i","attempt":2,"properties":"{}","position":1,"count":3,"extra":{"e":"1"}},"extra":{"x":"2"}}"#;

#[test]
fn invoicing_event_keeps_its_members() {
    is_kept::<InvoicingEvent>(INVOICING_EVENT);
    needs_all_but::<InvoicingEvent>(
        INVOICING_EVENT,
        &[
            "companyId",
            "entity",
            "entityId",
            "tenantId",
            "user",
            "changes",
            "host",
            "sourceApplication",
            "providerAction",
            "envelope",
        ],
    );
    is_kept::<InvoicingEvent>(
        r#"{"connector":"hooks","resource":"due","receivedAt":1,"companyId":null,"action":"unknown","entity":null,
        "entityId":null,"tenantId":null,"user":null,"changes":null,"host":null,"sourceApplication":null,
        "providerAction":null,"envelope":null,"extra":{}}"#,
    );
}
