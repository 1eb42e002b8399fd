// The Horde's tables as they are in this database now: names, types, indexes (contract, section 1).
#pragma once

#include "pg.hpp"

#include "../core/batch.hpp"

namespace kudos::server {

// How one integer, numeric or float8 column of a target is read and written.
struct ValueColumn {
    const char *name;
    const char *type_name; // to cast to
    ColumnType type;
    bool as_text; // travels as text; otherwise as int8
    bool binary;  // float8: holds the nearest double, exact to the cent up to 2^46
};

struct TargetTable {
    const char *name;      // qualified and quoted
    const char *remainder; // the projector's own table beside it, likewise
    int columns;
    ValueColumn column[max_value_columns];
};

struct QueueIndexes {
    int by_id; // how many begin with id
    int count;
    Oid *oid;
};

struct Schema {
    uint64 generation; // changes whenever anything here may have
    Oid extension;
    Oid ledger_owner; // the role that every cycle acts as
    bool restored;    // kudos_ledger has its foreign key to users
    bool ledger_subscribed;
    bool stats_subscribed;
    Oid ledger;
    Oid stat_events;
    const char *ledger_name;
    const char *stat_events_name;
    const char *reservations_name;
    const char *state_name;
    const char *control_name;
    const char *transfers_name; // used by kudos_transfer() alone, and not checked before
    const char *user_roles_name;
    const char *user_suspicions_name;
    const char *extension_schema; // not quoted
    TargetTable target[table_count];
    Oid record_type; // the enum of user_records.record_type
    const char *record_type_name;
    int32 user_action_width;
    int32 worker_action_width;
    int32 record_width;
    // Partial indexes that hold every queued row, those on (id) first: these the claims may read.
    QueueIndexes ledger_queue;
    QueueIndexes stat_queue;

    const TargetTable &of(Table table) const { return target[static_cast<int>(table)]; }
};

// Locks the extension against DROP for the rest of the transaction, before any relation is locked:
// DROP EXTENSION takes the same two in the same order. False: it does not exist (any more).
bool lock_extension();

// Gives the schema, checked; valid until the next call. Raises an error that names what is missing
// or unfit and the statement that mends it: 3F000, 42P01, 42703, 42704, 42804, 42501, 0A000.
const Schema &current_schema();

// Raises 55000 while the foreign key from kudos_ledger to users is missing: a restore is under way, and
// nobody can be said to be missing (section 4).
void require_restored(const Schema &schema);

// That, and 55000 while a subscription fills the queues: their publisher folds them.
void require_foldable(const Schema &schema);

// One thing that keeps the database from being folded.
struct Fault {
    int code; // SQLSTATE
    const char *object;
    const char *message;
    const char *detail = nullptr;
    const char *hint; // the statement that mends it, or what to do
};

// All that current_schema() and require_foldable() would raise, instead of the first: a list of Fault
// pointers, in the current memory context.
List *schema_faults();

// Whether the role may use what stands in the schema at all, or has another right to the schema.
bool may_use_schema(Oid namespace_oid, Oid role, AclMode right = ACL_USAGE);

} // namespace kudos::server
