//! Every value we publish, with the topic, key and version of each kind.

use serde::Serialize;

use super::{
    Account, AccountingEvent, AccountingResource, Certificate, Company, CompanyId, Customer, Error, Extra,
    InvoicingEvent, Key, PayrollCompany, PayrollCompanyCode, Record, RecordId, SchemaKind, SequenceVersion,
    TenantId, Topic, Version,
};

macro_rules! values {
    ($($kind:ident),+) => {
        /// A value of one of our schemas. Serializes as the bare record.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
        #[serde(untagged)]
        pub enum Value {
            $(
                #[doc = concat!("Of [`SchemaKind::", stringify!($kind), "`].")]
                $kind(Box<$kind>),
            )+
        }

        impl Value {
            /// Schema it is encoded with.
            #[must_use]
            pub const fn schema(&self) -> SchemaKind {
                match self {
                    $(Self::$kind(_) => SchemaKind::$kind,)+
                }
            }

            /// What the provider sent, as JSON; for a certificate, which is ours, its JSON.
            #[must_use]
            pub fn to_json(&self) -> String {
                match self {
                    $(Self::$kind(value) => value.to_json(),)+
                }
            }
        }

        $(
            impl From<$kind> for Value {
                fn from(value: $kind) -> Self {
                    Self::$kind(Box::new(value))
                }
            }
        )+
    };
}

values!(AccountingEvent, InvoicingEvent, Company, Customer, Account, Record, PayrollCompany, Certificate);

impl Value {
    /// Parses a record of any accounting resource into its topic's type, so that snapshot and enrichment make the same value
    /// of a record. `company` is not used for companies.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn from_resource_json(
        json: &[u8],
        resource: AccountingResource,
        company: &CompanyId,
    ) -> Result<Self, Error> {
        Ok(match resource {
            AccountingResource::Companies => Company::from_json(json)?.into(),
            AccountingResource::Customers => Customer::from_json(json, company)?.into(),
            AccountingResource::Accounts => Account::from_json(json, company)?.into(),
            other => Record::from_json(json, other, company)?.into(),
        })
    }

    /// Topic it belongs in.
    #[must_use]
    pub const fn topic(&self) -> Topic {
        match self {
            Self::AccountingEvent(event) => Topic::AccountingEvents(event.resource),
            Self::InvoicingEvent(event) => Topic::InvoicingEvents(event.resource),
            Self::Company(_) => Topic::AccountingRecords(AccountingResource::Companies),
            Self::Customer(_) => Topic::AccountingRecords(AccountingResource::Customers),
            Self::Account(_) => Topic::AccountingRecords(AccountingResource::Accounts),
            Self::Record(record) => Topic::AccountingRecords(record.resource),
            Self::PayrollCompany(_) => Topic::PayrollCompanies,
            Self::Certificate(_) => Topic::Certificates,
        }
    }

    /// Key it is published under.
    ///
    /// # Errors
    /// The provider left out, or sent empty, what the key is made of.
    pub fn key(&self) -> Result<Key, Error> {
        match self {
            Self::AccountingEvent(event) => {
                self.event_key(event.company_id.as_ref(), event.envelope.tenant_id.as_deref())
            }
            Self::InvoicingEvent(event) => {
                self.event_key(event.company_id.as_ref(), event.notification.tenant_id.as_deref())
            }
            Self::Company(company) => {
                // The company part of a company's key is the key of its events, as for every record.
                let id = self.id(company.correlation_id.as_deref())?;
                Ok(Key::record(&CompanyId::new(id.as_str())?, &id))
            }
            Self::Customer(customer) => {
                Ok(Key::record(&customer.company_id, &self.id(customer.correlation_id.as_deref())?))
            }
            Self::Account(account) => {
                Ok(Key::record(&account.company_id, &self.id(account.correlation_id.as_deref())?))
            }
            Self::Record(record) => {
                Ok(Key::record(&record.company_id, &self.id(record.correlation_id.as_deref())?))
            }
            Self::PayrollCompany(company) => {
                let code = company.company_code.ok_or(self.unplaceable("companyCode"))?;
                Ok(Key::payroll(&PayrollCompanyCode::from(code)))
            }
            Self::Certificate(certificate) => {
                match (&certificate.scope.company_id, certificate.scope.shard) {
                    (Some(company), None) => Ok(Key::company_list(company, &certificate.scope.list)),
                    (None, Some(shard)) => Ok(Key::shard_list(shard, &certificate.scope.list)),
                    _ => Err(self.unplaceable("companyId or shard, and not both,")),
                }
            }
        }
    }

    /// The id of a record within its company; `None` if it has none or the value is not a record.
    #[must_use]
    pub fn record_id(&self) -> Option<String> {
        let id = match self {
            Self::Company(company) => company.correlation_id.clone(),
            Self::Customer(customer) => customer.correlation_id.clone(),
            Self::Account(account) => account.correlation_id.clone(),
            Self::Record(record) => record.correlation_id.clone(),
            Self::PayrollCompany(company) => company.company_code.map(|code| code.to_string()),
            Self::AccountingEvent(_) | Self::InvoicingEvent(_) | Self::Certificate(_) => None,
        };
        id.filter(|id| !id.is_empty())
    }

    /// The version in the value itself; `None` if the provider sent none or the kind has none. A payroll company without a valid
    /// `lastUpdate` is versioned by its content.
    ///
    /// # Errors
    /// It has one that cannot be compared: a sequence that is not digits, or a value of another type.
    pub fn version(&self) -> Result<Option<Version>, Error> {
        const SEQUENCE: &str = "sequenceVersion";
        let sent = |extra: &Extra, name: &str| extra.get(name).is_some_and(|json| json != "null");
        let (sequence, unusable) = match self {
            Self::AccountingEvent(event) => {
                let read = &event.data.sequence_version;
                (read, read.is_none() && event.data_has_value("SequenceVersion"))
            }
            Self::Company(company) => (&company.sequence_version, sent(&company.extra, SEQUENCE)),
            Self::Customer(customer) => (&customer.sequence_version, sent(&customer.extra, SEQUENCE)),
            Self::Account(account) => (&account.sequence_version, sent(&account.extra, SEQUENCE)),
            Self::Record(record) => {
                let read = &record.sequence_version;
                (read, read.is_none() && record.has_value(SEQUENCE))
            }
            Self::PayrollCompany(company) => {
                let json = self.canonical();
                let version = company.last_update.as_deref();
                let version = version.and_then(|time| Version::payroll(time, json.as_bytes()).ok());
                return Ok(Some(version.unwrap_or_else(|| Version::content(None, json.as_bytes()))));
            }
            Self::InvoicingEvent(_) | Self::Certificate(_) => return Ok(None),
        };
        match sequence {
            Some(text) => SequenceVersion::parse(text).map(|version| Some(Version::Sequence(version))),
            None if unusable => Err(Error::Unversioned { schema: self.schema(), member: SEQUENCE }),
            None => Ok(None),
        }
    }

    /// The version of a record that was read by id for an event of this version: the record's own, or the event's with a hash of
    /// the content. A version that cannot be compared counts as none.
    #[must_use]
    pub fn version_or(&self, event_number: Option<&SequenceVersion>) -> Version {
        let own = self.version().ok().flatten();
        own.unwrap_or_else(|| Version::content(event_number.cloned(), self.canonical().as_bytes()))
    }

    /// Adds the id it was read by, if the provider left it out or sent it empty.
    #[must_use]
    pub fn with_id(mut self, id: &RecordId) -> Self {
        let own = match &mut self {
            Self::Company(company) => &mut company.correlation_id,
            Self::Customer(customer) => &mut customer.correlation_id,
            Self::Account(account) => &mut account.correlation_id,
            Self::Record(record) => &mut record.correlation_id,
            _ => return self,
        };
        if own.as_deref().is_none_or(str::is_empty) {
            *own = Some(id.as_str().to_owned());
        }
        self
    }

    /// Its content, independent of the order of members.
    fn canonical(&self) -> String {
        match self {
            Self::Record(record) => record.canonical(),
            // Members are written sorted by name.
            other => other.to_json(),
        }
    }

    fn event_key(&self, company: Option<&CompanyId>, tenant: Option<&str>) -> Result<Key, Error> {
        if let Some(company) = company {
            return Ok(Key::company(company));
        }
        let tenant = tenant.and_then(|id| TenantId::new(id).ok());
        tenant.as_ref().map(Key::tenant).ok_or(self.unplaceable("PartitionClientId or TenantId"))
    }

    fn id(&self, correlation_id: Option<&str>) -> Result<RecordId, Error> {
        correlation_id.and_then(|id| RecordId::new(id).ok()).ok_or(self.unplaceable("correlationId"))
    }

    const fn unplaceable(&self, member: &'static str) -> Error {
        Error::Unplaceable { schema: self.schema(), member }
    }
}
