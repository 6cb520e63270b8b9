//! The invoicing entities and their actions: one table, from which names and topics follow.

use std::{fmt, str::FromStr};

use super::{
    Error,
    text::{find, named, shown_as_name, written_as_text},
};

/// An entity of the invoicing API that accepts webhooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InvoicingEntity {
    /// Customer.
    Customer,
    /// Product.
    Product,
    /// Supplier.
    Supplier,
    /// Representative.
    Representative,
    /// Contact.
    Contact,
    /// Due.
    Due,
    /// Sale invoice.
    SaleInvoice,
    /// Purchase invoice.
    PurchaseInvoice,
    /// Sale offer.
    SaleOffer,
    /// Sale order.
    SaleOrder,
    /// Purchase order.
    PurchaseOrder,
    /// Sale delivery note.
    SaleDeliveryNote,
    /// Purchase delivery note.
    PurchaseDeliveryNote,
    /// Bank.
    Bank,
    /// Income type.
    IncomeType,
    /// Expense type.
    ExpenseType,
    /// Company data.
    CompanyData,
    /// Company settings.
    CompanySettings,
}

named! {
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

/// One webhook of the invoicing API: the provider takes a subscription for each pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InvoicingHook {
    /// Entity it is for.
    pub entity: InvoicingEntity,
    /// Action it is for.
    pub action: InvoicingAction,
}

impl InvoicingHook {
    /// The hook that has this [`HookSlug`].
    #[must_use]
    pub fn from_slug(text: &str) -> Option<Self> {
        let (entity, action) = text.rsplit_once('-')?;
        let hook = Self { entity: entity.parse().ok()?, action: action.parse().ok()? };
        // `parse` also takes the provider's names; an address has one spelling.
        (hook.slug().to_string() == text).then_some(hook)
    }

    /// Its name in an address: `sale-invoice-updated`.
    #[must_use]
    pub const fn slug(self) -> HookSlug {
        HookSlug(self)
    }
}

/// A hook written as the last segment of its own receiver address: `sale-invoice-updated`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HookSlug(InvoicingHook);

impl fmt::Display for HookSlug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.entity.name(), self.0.action.name())
    }
}

/// The table, in the order of the enum: entity, provider's name, our name, actions the provider offers.
const TABLE: &[(InvoicingEntity, &str, &str, &[InvoicingAction])] = {
    use InvoicingEntity as E;
    &[
        (E::Customer, "Customer", "customer", EVERY_ACTION),
        (E::Product, "Product", "product", EVERY_ACTION),
        (E::Supplier, "Supplier", "supplier", EVERY_ACTION),
        (E::Representative, "Representative", "representative", EVERY_ACTION),
        (E::Contact, "Contact", "contact", EVERY_ACTION),
        (E::Due, "Due", "due", EVERY_ACTION),
        (E::SaleInvoice, "SaleInvoice", "sale-invoice", EVERY_ACTION),
        (E::PurchaseInvoice, "PurchaseInvoice", "purchase-invoice", EVERY_ACTION),
        (E::SaleOffer, "SaleOffer", "sale-offer", EVERY_ACTION),
        (E::SaleOrder, "SaleOrder", "sale-order", EVERY_ACTION),
        (E::PurchaseOrder, "PurchaseOrder", "purchase-order", EVERY_ACTION),
        (E::SaleDeliveryNote, "SaleDeliveryNote", "sale-delivery-note", EVERY_ACTION),
        (E::PurchaseDeliveryNote, "PurchaseDeliveryNote", "purchase-delivery-note", EVERY_ACTION),
        (E::Bank, "Bank", "bank", EVERY_ACTION),
        (E::IncomeType, "IncomeType", "income-type", EVERY_ACTION),
        (E::ExpenseType, "ExpenseType", "expense-type", EVERY_ACTION),
        (E::CompanyData, "CompanyData", "company-data", UPDATED_ONLY),
        (E::CompanySettings, "CompanySettings", "company-settings", UPDATED_ONLY),
    ]
};

const EVERY_ACTION: &[InvoicingAction] = &InvoicingAction::ALL;
const UPDATED_ONLY: &[InvoicingAction] = &[InvoicingAction::Updated];

impl InvoicingEntity {
    /// Every entity, in the provider's order.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        TABLE.iter().map(|row| row.0)
    }

    /// Kebab-case name, as in topics: `sale-invoice`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        TABLE[self as usize].2
    }

    /// The provider's name, as in subscriptions and notifications: `SaleInvoice`.
    #[must_use]
    pub const fn provider_name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Actions the provider offers hooks for.
    #[must_use]
    pub const fn actions(self) -> &'static [InvoicingAction] {
        TABLE[self as usize].3
    }

    /// Whether the provider offers a hook for this action.
    #[must_use]
    pub fn allows(self, action: InvoicingAction) -> bool {
        self.actions().contains(&action)
    }
}

impl FromStr for InvoicingEntity {
    type Err = Error;

    /// Takes the provider's name or ours, exactly.
    fn from_str(name: &str) -> Result<Self, Error> {
        let named = Self::all().find(|entity| entity.name() == name);
        named.map_or_else(|| find("invoicing entity", name, Self::all(), Self::provider_name), Ok)
    }
}

impl InvoicingAction {
    /// The provider's name, as in subscriptions: `Created`.
    #[must_use]
    pub const fn provider_name(self) -> &'static str {
        match self {
            Self::Created => "Created",
            Self::Updated => "Updated",
            Self::Deleted => "Deleted",
        }
    }
}

impl FromStr for InvoicingAction {
    type Err = Error;

    /// Takes the provider's name or ours, exactly.
    fn from_str(name: &str) -> Result<Self, Error> {
        let named = Self::ALL.into_iter().find(|action| action.name() == name);
        named.map_or_else(|| find("invoicing action", name, Self::ALL.into_iter(), Self::provider_name), Ok)
    }
}

shown_as_name!(InvoicingEntity, InvoicingAction);
written_as_text!(InvoicingEntity, InvoicingAction);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_stands_in_the_order_of_the_enum_and_holds_all_eighteen() {
        assert_eq!(TABLE.len(), 18);
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, place, "{}", row.1);
        }
    }

    #[test]
    fn our_name_is_the_providers_in_kebab_case() {
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
    fn company_data_and_settings_are_only_ever_updated() {
        for entity in InvoicingEntity::all() {
            let only_updated =
                matches!(entity, InvoicingEntity::CompanyData | InvoicingEntity::CompanySettings);

            assert!(entity.allows(InvoicingAction::Updated), "{entity}");
            assert_eq!(entity.allows(InvoicingAction::Created), !only_updated, "{entity}");
            assert_eq!(entity.allows(InvoicingAction::Deleted), !only_updated, "{entity}");
        }
    }

    #[test]
    fn a_slug_names_one_hook_in_one_spelling() {
        for entity in InvoicingEntity::all() {
            for &action in entity.actions() {
                let hook = InvoicingHook { entity, action };

                assert_eq!(InvoicingHook::from_slug(&hook.slug().to_string()), Some(hook));
            }
        }
        let hook = InvoicingHook { entity: InvoicingEntity::SaleInvoice, action: InvoicingAction::Updated };
        assert_eq!(hook.slug().to_string(), "sale-invoice-updated");
        for other in
            ["", "-", "customer", "Customer-created", "customer-Created", "customer-created-", "x-created"]
        {
            assert_eq!(InvoicingHook::from_slug(other), None, "{other}");
        }
    }

    #[test]
    fn both_names_parse_and_a_wrong_one_lists_the_right_ones() {
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
