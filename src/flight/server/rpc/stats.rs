//! The action `stats`: the server's activity, as JSON.

use serde_json::{Value, json};

use super::core::Core;
use crate::flight::server::access::auth::Tenant;
use crate::flight::server::access::space::Space;

impl Core {
    /// Returns the server's activity as JSON: a tenant's own counts, and those of the whole server if there are no tenants.
    pub(crate) fn stats(&self, tenant: &Tenant) -> Value {
        let space = self.config.spaces.of(tenant);
        let mut stats = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "datasets": self.config.catalogue.get().names().collect::<Vec<_>>(),
            "draining": self.is_draining(),
            "tenant": tenant.name(),
            "sent": self.usage.of(tenant),
        });
        match &space {
            Space::Own(own) => stats["gangs"] = json!(self.gangs.running_in(Some(own))),
            Space::Common => stats["gangs"] = json!(self.gangs.running_in(None)),
            Space::Whole => {
                let (used, budget) = self.memory();
                let (row_groups, rows) = self.decoded();
                stats["gangs"] = json!(self.gangs.running());
                stats["memory"] = json!({ "used": used, "budget": budget });
                stats["rows_decoded"] = json!(rows);
                stats["row_groups_decoded"] = json!(row_groups);
                stats["written_bytes"] = json!(self.staging.as_ref().map_or(0, |staging| staging.memory_used()));
            }
        }
        stats
    }
}
