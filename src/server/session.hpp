// Who a cycle is and what its session looks like (architecture, decisions 5 and 6).
#pragma once

#include "pg.hpp"
#include "schema.hpp"

namespace kudos::server {

// What to put back; an error puts it back by itself, with the (sub)transaction.
struct Acting {
    Oid role;
    int security_context;
    int settings_level;
};

Oid owner_of_relation(Oid relation);

// Acts as a role, with every setting that could change what a statement means
// pinned: search_path, row security, time-outs, replication role, number formats.
// lock_timeout: the caller's own, when it is shorter, otherwise ours.
Acting act_as(Oid role);
Acting act_as_ledger_owner(const Schema &schema);
void stop_acting(const Acting &acting);

// Lets the ledger's owner use the extension's remainder tables, which belong to the extension's
// owner. Called under the applier lock; does nothing when he can already.
void grant_remainder_access(const Schema &schema);

// Naive UTC, as all timestamps of the Horde's tables are (contract, section 1): TimestampTz counts
// from a UTC epoch, so the same number read as timestamp is UTC.
inline Timestamp utc_now()
{
    return static_cast<Timestamp>(GetCurrentTimestamp());
}

} // namespace kudos::server
