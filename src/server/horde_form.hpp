// The current form of the Horde's accounting tables, as data: what kudos_install_ledger() brings a
// database to, and which of its indexes kudos_check_schema() misses.
//
// New tables take the form that a migrated Horde has, with two exceptions: timestamps default to UTC
// instead of the session's zone, and kudos_ledger gets a small index on the events of its queue.
#pragma once

#include "pg.hpp"

#include <span>

namespace kudos::server {

// What a table that already holds rows may be given: a column whose value is known for old rows. A
// default for "applied", say, would queue or swallow the whole archive.
enum class OldRows { have_no_value, take_default };

struct ColumnForm {
    const char *name;
    const char *definition;
    OldRows old_rows = OldRows::have_no_value;
};

struct CheckForm {
    const char *name;
    const char *column[2]; // that the condition reads
    const char *condition;
};

struct TableForm {
    const char *name;
    std::span<const ColumnForm> columns;
    std::span<const CheckForm> checks;
    const char *user_key = nullptr;        // constraint name of the foreign key (user_id) to users
    const char *user_key_action = nullptr; // ON DELETE ...
    const char *storage = nullptr;         // storage parameters
    bool one_row = false;                  // always small: constraints are checked at once
};

struct Condition {
    const char *predicate; // as we write it
    const char *promise;   // in all its spellings: the server proves none from the other
    const char *column[2]; // that it reads
};

enum class IndexKind { plain, unique, primary_key };

struct IndexForm {
    const char *table;
    const char *name;
    const char *key[3];
    const Condition *condition = nullptr; // null: of all rows
    IndexKind kind = IndexKind::plain;
    bool full_serves = false;         // an index of all rows does as well
    bool beside_wider = false;        // the Horde has it although a wider one begins with the same column
    const char *without_it = nullptr; // what the projector suffers; null: nothing
};

namespace form {

inline constexpr Condition unapplied{"applied IS FALSE", "applied IS FALSE AND NOT applied", {"applied"}};
inline constexpr Condition drainable{"applied IS FALSE AND quarantined IS FALSE",
                                     "applied IS FALSE AND NOT applied AND quarantined IS FALSE AND NOT quarantined",
                                     {"applied", "quarantined"}};
inline constexpr Condition quarantined{"quarantined IS TRUE", "quarantined IS TRUE AND quarantined", {"quarantined"}};
inline constexpr Condition has_user{"user_id IS NOT NULL", "user_id IS NOT NULL", {"user_id"}};
inline constexpr Condition has_worker{"worker_id IS NOT NULL", "worker_id IS NOT NULL", {"worker_id"}};
inline constexpr Condition has_team{"team_id IS NOT NULL", "team_id IS NOT NULL", {"team_id"}};
inline constexpr Condition active_hold{"released_at IS NULL AND remaining_amount > 0",
                                       "released_at IS NULL AND remaining_amount > 0",
                                       {"released_at", "remaining_amount"}};
inline constexpr Condition positive_escrow{"evaluating_kudos > 0", "evaluating_kudos > 0", {"evaluating_kudos"}};

inline constexpr ColumnForm ledger_columns[] = {
    {"id", "bigint GENERATED ALWAYS AS IDENTITY"},
    {"created", "timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'utc')"},
    {"event_id", "uuid NOT NULL"},
    {"entry_type", "varchar(32) NOT NULL"},
    {"user_id", "integer NOT NULL"},
    {"escrow", "boolean NOT NULL DEFAULT false"},
    {"amount", "numeric(20,2) NOT NULL"},
    {"applied", "boolean NOT NULL DEFAULT false"},
    {"job_id", "uuid", OldRows::take_default},
    {"wp_type", "varchar(20)", OldRows::take_default},
    {"detail", "jsonb", OldRows::take_default},
};
inline constexpr CheckForm ledger_checks[] = {
    {"kudos_ledger_amount_check", {"amount"}, "amount <> 'NaN'::numeric"},
};

inline constexpr ColumnForm stat_event_columns[] = {
    {"id", "bigint GENERATED ALWAYS AS IDENTITY"},
    {"created", "timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'utc')"},
    {"event_id", "uuid NOT NULL"},
    {"entry_type", "varchar(32) NOT NULL"},
    {"user_id", "integer"},
    {"worker_user_id", "integer", OldRows::take_default},
    {"worker_id", "uuid"},
    {"team_id", "uuid", OldRows::take_default},
    {"job_id", "uuid", OldRows::take_default},
    {"wp_type", "varchar(20)", OldRows::take_default},
    {"amount", "numeric(20,2) NOT NULL"},
    {"unit", "varchar(16) NOT NULL"},
    {"stat_action", "varchar(32)", OldRows::take_default},
    {"record", "varchar(32)", OldRows::take_default},
    {"detail", "jsonb", OldRows::take_default},
    {"applied", "boolean NOT NULL DEFAULT false"},
    {"quarantined", "boolean NOT NULL DEFAULT false", OldRows::take_default},
    {"quarantine_reason", "varchar(64)", OldRows::take_default},
    {"quarantined_at", "timestamp", OldRows::take_default},
};
inline constexpr CheckForm stat_event_checks[] = {
    {"kudos_stat_events_amount_check", {"amount"}, "amount <> 'NaN'::numeric"},
    {"kudos_stat_event_exactly_one_target", {"user_id", "worker_id"}, "(user_id IS NULL) <> (worker_id IS NULL)"},
};

inline constexpr ColumnForm reservation_columns[] = {
    {"id", "uuid"},
    {"business_id", "varchar(128) NOT NULL"},
    {"user_id", "integer NOT NULL"},
    {"event_id", "uuid", OldRows::take_default},
    {"original_amount", "numeric(20,2) NOT NULL"},
    {"remaining_amount", "numeric(20,2) NOT NULL"},
    {"created", "timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'utc')"},
    {"released_at", "timestamp"},
};
inline constexpr CheckForm reservation_checks[] = {
    {"kudos_reservations_original_amount_check", {"original_amount"}, "original_amount > 0"},
    {"kudos_reservations_remaining_amount_check", {"remaining_amount"}, "remaining_amount >= 0"},
};

inline constexpr ColumnForm snapshot_columns[] = {
    {"id", "bigint GENERATED ALWAYS AS IDENTITY"},
    {"snapshot_id", "uuid NOT NULL"},
    {"user_id", "integer NOT NULL"},
    {"balance", "numeric(20,2) NOT NULL"},
    {"escrow", "numeric(20,2) NOT NULL"},
    {"applied_balance_total", "numeric(30,2) NOT NULL"},
    {"applied_escrow_total", "numeric(30,2) NOT NULL"},
    {"created", "timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'utc')"},
};

inline constexpr ColumnForm state_columns[] = {
    {"id", "smallint"},
    {"applied_at", "timestamp", OldRows::take_default},
};

inline constexpr ColumnForm control_columns[] = {
    {"id", "smallint"},
    {"mode", "varchar(16) NOT NULL DEFAULT 'shadow'"},
    {"changed_at", "timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'utc')", OldRows::take_default},
};
inline constexpr CheckForm control_checks[] = {
    {"kudos_ledger_control_mode", {"mode"}, "mode IN ('shadow', 'ledger')"},
};

} // namespace form

inline constexpr TableForm ledger_tables[] = {
    {.name = "kudos_ledger",
     .columns = form::ledger_columns,
     .checks = form::ledger_checks,
     .user_key = "kudos_ledger_user_id_fkey",
     .user_key_action = "ON DELETE RESTRICT",
     .storage = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100000, "
                "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 200000"},
    {.name = "kudos_stat_events",
     .columns = form::stat_event_columns,
     .checks = form::stat_event_checks,
     .storage = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 250000, "
                "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 500000"},
    {.name = "kudos_reservations",
     .columns = form::reservation_columns,
     .checks = form::reservation_checks,
     .user_key = "kudos_reservations_user_id_fkey",
     .user_key_action = "ON DELETE CASCADE"},
    {.name = "kudos_balance_snapshots",
     .columns = form::snapshot_columns,
     .checks = {},
     .user_key = "kudos_balance_snapshots_user_id_fkey",
     .user_key_action = "ON DELETE CASCADE"},
    {.name = "kudos_ledger_applier_state", .columns = form::state_columns, .checks = {}, .one_row = true},
    {.name = "kudos_ledger_control", .columns = form::control_columns, .checks = form::control_checks, .one_row = true},
};

// By table, keys before the rest.
inline constexpr IndexForm horde_indexes[] = {
    {.table = "kudos_ledger", .name = "kudos_ledger_pkey", .key = {"id"}, .kind = IndexKind::primary_key},
    {.table = "kudos_ledger", .name = "ix_kudos_ledger_created", .key = {"created"}},
    {.table = "kudos_ledger", .name = "ix_kudos_ledger_user_id", .key = {"user_id"}},
    {.table = "kudos_ledger", .name = "ix_kudos_ledger_unapplied", .key = {"id"}, .condition = &form::unapplied},
    {.table = "kudos_ledger",
     .name = "ix_kudos_ledger_unapplied_event_id",
     .key = {"event_id"},
     .condition = &form::unapplied,
     .full_serves = true,
     .without_it = "every cycle that finds a hold of an event reads the whole queue for the rest of that event"},
    {.table = "kudos_ledger",
     .name = "ix_kudos_ledger_unapplied_users",
     .key = {"entry_type", "user_id"},
     .condition = &form::unapplied},
    {.table = "kudos_ledger",
     .name = "ix_kudos_ledger_unapplied_by_user",
     .key = {"user_id"},
     .condition = &form::unapplied},

    {.table = "kudos_stat_events", .name = "kudos_stat_events_pkey", .key = {"id"}, .kind = IndexKind::primary_key},
    {.table = "kudos_stat_events",
     .name = "ix_kudos_stat_events_event_id",
     .key = {"event_id"},
     .without_it = "setting an event aside reads the whole archive of stat events"},
    {.table = "kudos_stat_events",
     .name = "ix_kudos_stat_events_user_id",
     .key = {"user_id"},
     .condition = &form::has_user,
     .full_serves = true},
    {.table = "kudos_stat_events",
     .name = "ix_kudos_stat_events_worker_id",
     .key = {"worker_id"},
     .condition = &form::has_worker,
     .full_serves = true},
    {.table = "kudos_stat_events",
     .name = "ix_kudos_stat_events_team_id",
     .key = {"team_id"},
     .condition = &form::has_team,
     .full_serves = true},
    {.table = "kudos_stat_events",
     .name = "ix_kudos_stat_events_unapplied",
     .key = {"id"},
     .condition = &form::unapplied},
    {.table = "kudos_stat_events",
     .name = "ix_kudos_stat_events_drainable",
     .key = {"id"},
     .condition = &form::drainable,
     .without_it = "every cycle reads past all quarantined stat events"},
    {.table = "kudos_stat_events",
     .name = "ix_kudos_stat_events_quarantined",
     .key = {"created", "quarantined_at"},
     .condition = &form::quarantined,
     .without_it = "kudos_health() reads the whole archive of stat events"},

    {.table = "kudos_reservations", .name = "kudos_reservations_pkey", .key = {"id"}, .kind = IndexKind::primary_key},
    {.table = "kudos_reservations",
     .name = "kudos_reservations_business_id_key",
     .key = {"business_id"},
     .kind = IndexKind::unique,
     .without_it = "every cycle reads all reservations, and one hold may stand there twice"},
    {.table = "kudos_reservations",
     .name = "ix_kudos_reservations_event_id",
     .key = {"event_id"},
     .without_it = "every cycle reads all reservations"},
    {.table = "kudos_reservations",
     .name = "ix_kudos_reservations_active_user",
     .key = {"user_id"},
     .condition = &form::active_hold,
     .without_it = "kudos_health() reads all reservations"},

    {.table = "kudos_balance_snapshots",
     .name = "kudos_balance_snapshots_pkey",
     .key = {"id"},
     .kind = IndexKind::primary_key},
    {.table = "kudos_balance_snapshots",
     .name = "uq_kudos_balance_snapshot_user",
     .key = {"snapshot_id", "user_id"},
     .kind = IndexKind::unique},
    {.table = "kudos_balance_snapshots",
     .name = "ix_kudos_balance_snapshots_snapshot_id",
     .key = {"snapshot_id"},
     .beside_wider = true},
    {.table = "kudos_balance_snapshots", .name = "ix_kudos_balance_snapshots_user_id", .key = {"user_id"}},
    {.table = "kudos_balance_snapshots", .name = "ix_kudos_balance_snapshots_created", .key = {"created"}},

    {.table = "kudos_ledger_applier_state",
     .name = "kudos_ledger_applier_state_pkey",
     .key = {"id"},
     .kind = IndexKind::primary_key},
    {.table = "kudos_ledger_control",
     .name = "kudos_ledger_control_pkey",
     .key = {"id"},
     .kind = IndexKind::primary_key},

    {.table = "user_stats",
     .name = "uq_user_stats_user_action",
     .key = {"user_id", "action"},
     .kind = IndexKind::unique},
    {.table = "worker_stats",
     .name = "uq_worker_stats_worker_action",
     .key = {"worker_id", "action"},
     .kind = IndexKind::unique},
    {.table = "user_records",
     .name = "user_records_user_id_record_type_record_key",
     .key = {"user_id", "record_type", "record"},
     .kind = IndexKind::unique},
    {.table = "users",
     .name = "ix_users_evaluating_kudos_positive",
     .key = {"id"},
     .condition = &form::positive_escrow,
     .without_it = "the escrow drain reads all users"},
};

} // namespace kudos::server
