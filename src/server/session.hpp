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
// What is set between the two, by whatever runs there, is undone at the end.
Acting act_as(Oid role);
Acting act_as_ledger_owner(const Schema &schema);
void stop_acting(const Acting &acting);

// Makes sure that the role is still the owner of kudos_ledger, and stays it until the transaction ends: a
// new owner's triggers must not run with the rights of the old one. 55006 where it is not.
void keep_ledger_owner(const Schema &schema);

// From here until stop_acting(), a lock is waited for no longer than kudos_projector.lock_timeout, or
// the caller's own lock_timeout where that is shorter. For cycles: who pins a mode or waits for his
// turn to spend waits as he likes.
void limit_lock_waits();

// Between these two, a lock is waited for as briefly as can be: to find out which row is locked.
int begin_brief_waits();
void end_brief_waits(int level);

// Runs work(results) as the ledger's owner with an SPI connection; what outlives it is allocated in
// the memory context results.
template <typename Work> void as_ledger_owner(const Schema &schema, Work work)
{
    static_assert(jump_safe<Work>);
    const Acting acting = act_as_ledger_owner(schema);
    keep_ledger_owner(schema);
    MemoryContext results = CurrentMemoryContext;
    SPI_connect();
    work(results);
    SPI_finish();
    stop_acting(acting);
}

// Lets the ledger's owner use the extension's own tables, which belong to the extension's owner; does
// nothing when he can already. Needs an SPI connection.
void grant_own_tables(const Schema &schema);

// Naive UTC, as all timestamps of the Horde's tables are (contract, section 1): TimestampTz counts
// from a UTC epoch, so the same number read as timestamp is UTC.
inline Timestamp utc_now()
{
    return static_cast<Timestamp>(GetCurrentTimestamp());
}

} // namespace kudos::server
