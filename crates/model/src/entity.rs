//! The invoicing entities and their actions, with their names and topics.

use std::str::FromStr;

use super::{
    Error,
    names::{named, shown_as_name},
    text::{find, written_as_text},
};

/// A `named!` enum whose variants have the provider's names; it parses from either name.
macro_rules! named_by_provider {
    (
        $what:literal
        $(#[$meta:meta])*
        pub enum $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }
    ) => {
        named! {
            $(#[$meta])*
            pub enum $type { $($(#[$doc])* $variant = $name,)+ }
        }

        impl $type {
            /// The provider's name, as in subscriptions and notifications: `SaleInvoice`, `Created`.
            #[must_use]
            pub const fn provider_name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($variant),)+
                }
            }
        }

        impl FromStr for $type {
            type Err = Error;

            /// Accepts the provider's name or ours, exactly.
            fn from_str(name: &str) -> Result<Self, Error> {
                let ours = Self::ALL.into_iter().find(|one| one.name() == name);
                ours.map_or_else(|| find($what, name, &Self::ALL, Self::provider_name), Ok)
            }
        }
    };
}

named_by_provider! {
    "invoicing entity"
    /// An entity of the invoicing API that accepts webhooks.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum InvoicingEntity {
        /// Customer.
        Customer = "customer",
        /// Product.
        Product = "product",
        /// Supplier.
        Supplier = "supplier",
        /// Representative.
        Representative = "representative",
        /// Contact.
        Contact = "contact",
        /// Due.
        Due = "due",
        /// Sale invoice.
        SaleInvoice = "sale-invoice",
        /// Purchase invoice.
        PurchaseInvoice = "purchase-invoice",
        /// Sale offer.
        SaleOffer = "sale-offer",
        /// Sale order.
        SaleOrder = "sale-order",
        /// Purchase order.
        PurchaseOrder = "purchase-order",
        /// Sale delivery note.
        SaleDeliveryNote = "sale-delivery-note",
        /// Purchase delivery note.
        PurchaseDeliveryNote = "purchase-delivery-note",
        /// Bank.
        Bank = "bank",
        /// Income type.
        IncomeType = "income-type",
        /// Expense type.
        ExpenseType = "expense-type",
        /// Company data.
        CompanyData = "company-data",
        /// Company settings.
        CompanySettings = "company-settings",
    }
}

named_by_provider! {
    "invoicing action"
    /// What can happen to an entity.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum InvoicingAction {
        /// Created.
        Created = "created",
        /// Updated.
        Updated = "updated",
        /// Deleted.
        Deleted = "deleted",
    }
}

/// One webhook of the invoicing API: the provider has a subscription per pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InvoicingHook {
    /// Entity it is for.
    pub entity: InvoicingEntity,
    /// Action it is for.
    pub action: InvoicingAction,
}

impl InvoicingHook {
    /// The hook that has this [`InvoicingHook::slug`].
    #[must_use]
    pub fn from_slug(text: &str) -> Option<Self> {
        let (entity, action) = text.rsplit_once('-')?;
        let hook = Self { entity: entity.parse().ok()?, action: action.parse().ok()? };
        // `parse` also accepts the provider's names; an address has one spelling.
        (hook.slug() == text).then_some(hook)
    }

    /// The last segment of its receiver address: `sale-invoice-updated`.
    #[must_use]
    pub fn slug(self) -> String {
        format!("{}-{}", self.entity, self.action)
    }
}

impl InvoicingEntity {
    /// Every entity, in the provider's order.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        Self::ALL.into_iter()
    }

    /// Actions the provider offers hooks for.
    #[must_use]
    pub const fn actions(self) -> &'static [InvoicingAction] {
        match self {
            Self::CompanyData | Self::CompanySettings => &[InvoicingAction::Updated],
            _ => &InvoicingAction::ALL,
        }
    }

    /// Whether the provider offers a hook for this action.
    #[must_use]
    pub fn allows(self, action: InvoicingAction) -> bool {
        self.actions().contains(&action)
    }
}

shown_as_name!(InvoicingEntity, InvoicingAction);
written_as_text!(InvoicingEntity, InvoicingAction);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_providers_in_kebab_case() {
        assert_eq!(InvoicingEntity::ALL.len(), 18);
        for entity in InvoicingEntity::all() {
            let mut kebab = String::new();
            for letter in entity.provider_name().chars() {
                if letter.is_uppercase() && !kebab.is_empty() {
                    kebab.push('-');
                }
                kebab.push(letter.to_ascii_lowercase());
            }

            assert_eq!(entity.name(), kebab);
        }
    }

    #[test]
    fn company_data_and_settings_are_only_updated() {
        for entity in InvoicingEntity::all() {
            let only_updated =
                matches!(entity, InvoicingEntity::CompanyData | InvoicingEntity::CompanySettings);

            assert!(entity.allows(InvoicingAction::Updated), "{entity}");
            assert_eq!(entity.allows(InvoicingAction::Created), !only_updated, "{entity}");
            assert_eq!(entity.allows(InvoicingAction::Deleted), !only_updated, "{entity}");
        }
    }

    #[test]
    fn slug_names_one_hook_in_one_spelling() {
        for entity in InvoicingEntity::all() {
            for &action in entity.actions() {
                let hook = InvoicingHook { entity, action };

                assert_eq!(InvoicingHook::from_slug(&hook.slug()), Some(hook));
            }
        }
        let hook = InvoicingHook { entity: InvoicingEntity::SaleInvoice, action: InvoicingAction::Updated };
        assert_eq!(hook.slug(), "sale-invoice-updated");
        for other in
            ["", "-", "customer", "Customer-created", "customer-Created", "customer-created-", "x-created"]
        {
            assert_eq!(InvoicingHook::from_slug(other), None, "{other}");
        }
    }

    #[test]
    fn both_names_parse_and_an_error_lists_the_valid_ones() {
        for entity in InvoicingEntity::all() {
            assert_eq!(entity.name().parse(), Ok(entity));
            assert_eq!(entity.provider_name().parse(), Ok(entity));
        }

        let entity = "saleinvoice".parse::<InvoicingEntity>().unwrap_err().to_string();
        let action = "Removed".parse::<InvoicingAction>().unwrap_err().to_string();

        assert!(
            entity.contains("`saleinvoice`") && entity.contains("SaleInvoice, PurchaseInvoice"),
            "{entity}"
        );
        assert_eq!(action, "unknown invoicing action `Removed`; use one of: Created, Updated, Deleted");
    }
}
