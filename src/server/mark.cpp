#include "mark.hpp"

extern "C" {
#include "catalog/pg_enum.h"
#include "utils/catcache.h"
#include "utils/syscache.h"
}

#include <algorithm>

#include "halving.hpp"
#include "session.hpp"
#include "statement.hpp"

namespace kudos::server {
namespace {

Statement lock_users_statement[2];
Statement existing_users_statement;
Statement quarantine_statement;
Statement mark_ledger_statement;
Statement mark_stats_statement;
Statement unmarked_statement[2];

void write_lock_users(StringInfo sql, const Schema &schema, int variant)
{
    appendStringInfo(sql, "SELECT u.id::int8 FROM %s u WHERE u.id = ANY ($1) ORDER BY u.id FOR KEY SHARE OF u%s",
                     schema.of(Table::users).name,
                     static_cast<Attempt>(variant) == Attempt::careful ? " SKIP LOCKED" : "");
}

void write_existing_users(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql, "SELECT u.id::int8, u.tableoid, u.ctid FROM %s u WHERE u.id = ANY ($1) ORDER BY u.id",
                     schema.of(Table::users).name);
}

void write_quarantine(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "WITH chosen AS MATERIALIZED ("
                     " SELECT e.id, q.reason FROM unnest($1::uuid[], $2::text[]) q(event_id, reason)"
                     " JOIN %s e ON e.event_id = q.event_id WHERE NOT e.applied AND NOT e.quarantined"
                     " FOR UPDATE OF e SKIP LOCKED)"
                     " UPDATE %s e SET quarantined = true, quarantine_reason = c.reason, quarantined_at = $3"
                     " FROM chosen c WHERE e.id = c.id RETURNING e.event_id, e.quarantined",
                     schema.stat_events_name, schema.stat_events_name);
}

constexpr const char *ledger_marked = "p.applied";
constexpr const char *stat_marked = "p.applied AND NOT p.quarantined";

// Counts what is stored, not what was meant: a trigger may have put the flag back.
void write_mark(StringInfo sql, const char *table, const char *flag)
{
    appendStringInfo(sql,
                     "WITH marked AS (UPDATE %s p SET applied = true WHERE p.id = ANY ($1) RETURNING %s AS as_meant)"
                     " SELECT count(*) FILTER (WHERE m.as_meant) FROM marked m",
                     table, flag);
}

void write_unmarked(StringInfo sql, const Schema &schema, int variant)
{
    const bool ledger = static_cast<Table>(variant) == Table::ledger_rows;
    appendStringInfo(sql,
                     "SELECT k.id FROM unnest($1::int8[]) k(id)"
                     " WHERE NOT EXISTS (SELECT FROM %s p WHERE p.id = k.id AND %s)",
                     ledger ? schema.ledger_name : schema.stat_events_name, ledger ? ledger_marked : stat_marked);
}

void write_mark_ledger(StringInfo sql, const Schema &schema, int)
{
    write_mark(sql, schema.ledger_name, ledger_marked);
}

void write_mark_stats(StringInfo sql, const Schema &schema, int)
{
    write_mark(sql, schema.stat_events_name, stat_marked);
}

std::span<std::int64_t> ids_of(SPIPlanPtr plan, Datum ids)
{
    execute(plan, {&ids, 1}, SPI_OK_SELECT);
    const Rows rows;
    std::span<std::int64_t> found = allocate<std::int64_t>(rows.count());
    for (uint64 row = 0; row < rows.count(); row++)
        found[row] = rows.integer(row, 1);
    return found;
}

std::span<std::int64_t> lock_named_users(const Schema &schema, Batch &batch, Attempt attempt)
{
    const Oid types[] = {INT8ARRAYOID};
    const int variant = static_cast<int>(attempt);
    const Datum ids = array_of(named_users(batch));
    std::span<std::int64_t> locked =
        ids_of(prepared(lock_users_statement[variant], schema, write_lock_users, variant, types), ids);
    if (attempt == Attempt::optimistic || locked.size() == named_users(batch).size())
        return locked;

    // Which of those that were passed over are there? Their rows wait; they are not missing.
    std::span<std::int64_t> existing =
        ids_of(prepared(existing_users_statement, schema, write_existing_users, 0, types), ids);
    const Rows rows;
    for (std::size_t i = 0; i < existing.size(); i++)
        if (!std::binary_search(locked.begin(), locked.end(), existing[i]))
            require_ok(refuse(batch, {.table = Table::users,
                                      .column = column::user_existence,
                                      .cause = Cause::locked,
                                      .key = TargetKey{.user = existing[i]},
                                      .holder = rows.holder(i)}));
    return existing;
}

// Read anew for every batch: a label added since is a label (section 4). Borrowed from the cache
// list, which is copied.
std::span<const std::string_view> record_types(const Schema &schema)
{
    CatCList *list = SearchSysCacheList1(ENUMTYPOIDNAME, ObjectIdGetDatum(schema.record_type));
    std::span<std::string_view> labels = allocate<std::string_view>(static_cast<std::size_t>(list->n_members));
    for (int i = 0; i < list->n_members; i++) {
        const auto *label = reinterpret_cast<Form_pg_enum>(GETSTRUCT(&list->members[i]->tuple));
        labels[static_cast<std::size_t>(i)] = pstrdup(NameStr(label->enumlabel));
    }
    ReleaseCatCacheList(list);
    return labels;
}

void refuse_row(Batch &batch, Table rows, std::int64_t id, Cause cause, std::string_view message = {})
{
    require_ok(refuse(batch, {.table = rows, .cause = cause, .key = TargetKey{.user = id}, .message = message}));
}

// A trigger that put the flag back or skipped the row.
void refuse_unmarked(const Schema &schema, Batch &batch, Table rows, Datum ids)
{
    const Oid types[] = {INT8ARRAYOID};
    Statement &statement = unmarked_statement[rows == Table::ledger_rows ? 0 : 1];
    for (const std::int64_t id :
         ids_of(prepared(statement, schema, write_unmarked, static_cast<int>(rows), types), ids))
        refuse_row(batch, rows, id, Cause::not_written);
}

void mark(const Schema &schema, Batch &batch, Table rows, std::span<const std::int64_t> ids, Attempt attempt)
{
    const Oid types[] = {INT8ARRAYOID};
    SPIPlanPtr plan = rows == Table::ledger_rows ? prepared(mark_ledger_statement, schema, write_mark_ledger, 0, types)
                                                 : prepared(mark_stats_statement, schema, write_mark_stats, 0, types);
    write_each(
        attempt, batch, ids,
        [&](std::span<const std::int64_t> chosen) {
            const Datum parameters[] = {array_of(chosen)};
            execute(plan, parameters, SPI_OK_SELECT);
            if (static_cast<std::size_t>(Rows().integer(0, 1)) != chosen.size())
                refuse_unmarked(schema, batch, rows, parameters[0]);
        },
        [&](std::int64_t id, Cause cause, std::string_view message) { refuse_row(batch, rows, id, cause, message); });
}

void refuse_event(Batch &batch, const Uuid &event, Cause cause, std::string_view message = {})
{
    require_ok(refuse(
        batch, {.table = Table::stat_rows, .cause = cause, .key = TargetKey{.uuid = event}, .message = message}));
}

// Gives how many rows were set aside.
std::int64_t quarantine_events(const Schema &schema, Batch &batch, std::span<const QuarantinedEvent> events)
{
    const Oid types[] = {UUIDARRAYOID, TEXTARRAYOID, TIMESTAMPOID};
    SPIPlanPtr plan = prepared(quarantine_statement, schema, write_quarantine, 0, types);
    const Datum parameters[] = {
        array_from(events, UUIDOID, [](const QuarantinedEvent &event) { return uuid_datum(event.event); }),
        array_from(events, TEXTOID,
                   [](const QuarantinedEvent &event) { return text_datum(reason_text(event.reason)); }),
        TimestampGetDatum(utc_now()),
    };
    execute(plan, parameters, SPI_OK_UPDATE_RETURNING);
    const Rows rows;
    std::int64_t quarantined = 0;
    std::span<std::size_t> rows_of = allocate<std::size_t>(events.size());
    for (uint64 row = 0; row < rows.count(); row++) {
        if (!rows.boolean(row, 2))
            continue;
        const auto event = std::lower_bound(events.begin(), events.end(), rows.uuid(row, 1),
                                            [](const QuarantinedEvent &a, const Uuid &b) { return a.event < b; });
        rows_of[static_cast<std::size_t>(event - events.begin())]++;
        quarantined++;
    }
    // More than were claimed are fine: the event's other rows. Fewer: a trigger changed or skipped some.
    for (std::size_t i = 0; i < events.size(); i++)
        if (rows_of[i] < events[i].claimed_rows)
            refuse_event(batch, events[i].event, Cause::not_written);
    return quarantined;
}

} // namespace

ProjectionLimits projection_limits(const Schema &schema)
{
    return {.record_types = record_types(schema),
            .user_action = schema.user_action_width,
            .worker_action = schema.worker_action_width,
            .record = schema.record_width};
}

void validate_claim(const Schema &schema, Batch &batch, Attempt attempt)
{
    std::span<const std::int64_t> existing;
    if (!named_users(batch).empty())
        existing = lock_named_users(schema, batch, attempt);
    require_ok(validate_batch(batch, existing, projection_limits(schema)));
}

std::span<const std::int64_t> lock_existing_users(const Schema &schema, std::span<const std::int64_t> users)
{
    const Oid types[] = {INT8ARRAYOID};
    const int variant = static_cast<int>(Attempt::optimistic);
    return ids_of(prepared(lock_users_statement[variant], schema, write_lock_users, variant, types), array_of(users));
}

std::int64_t quarantine(const Schema &schema, Batch &batch, Attempt attempt)
{
    std::int64_t quarantined = 0;
    write_each(
        attempt, batch, quarantined_events(batch),
        [&](std::span<const QuarantinedEvent> chosen) { quarantined += quarantine_events(schema, batch, chosen); },
        [&](const QuarantinedEvent &event, Cause cause, std::string_view message) {
            refuse_event(batch, event.event, cause, message);
        });
    return quarantined;
}

void mark_applied(const Schema &schema, Batch &batch, Attempt attempt)
{
    mark(schema, batch, Table::ledger_rows, currency_ids(batch), attempt);
    mark(schema, batch, Table::stat_rows, stat_ids(batch), attempt);
}

} // namespace kudos::server
