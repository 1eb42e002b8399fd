#include "mark.hpp"

extern "C" {
#include "catalog/pg_enum.h"
#include "utils/catcache.h"
#include "utils/syscache.h"
}

#include <algorithm>

#include "session.hpp"
#include "statement.hpp"

namespace kudos::server {
namespace {

Statement lock_users_statement[2];
Statement existing_users_statement;
Statement quarantine_statement;
Statement mark_ledger_statement;
Statement mark_stats_statement;

void write_lock_users(StringInfo sql, const Schema &schema, int variant)
{
    appendStringInfo(sql, "SELECT u.id::int8 FROM %s u WHERE u.id = ANY ($1) ORDER BY u.id FOR KEY SHARE OF u%s",
                     schema.of(Table::users).name,
                     static_cast<Attempt>(variant) == Attempt::careful ? " SKIP LOCKED" : "");
}

void write_existing_users(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql, "SELECT u.id::int8 FROM %s u WHERE u.id = ANY ($1) ORDER BY u.id",
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
                     " FROM chosen c WHERE e.id = c.id RETURNING e.quarantined",
                     schema.stat_events_name, schema.stat_events_name);
}

// Counts what is stored, not what was meant: a trigger may have put the flag back.
void write_mark(StringInfo sql, const char *table, const char *flag)
{
    appendStringInfo(sql,
                     "WITH marked AS (UPDATE %s p SET applied = true WHERE p.id = ANY ($1) RETURNING %s AS as_meant)"
                     " SELECT count(*) FILTER (WHERE m.as_meant) FROM marked m",
                     table, flag);
}

void write_mark_ledger(StringInfo sql, const Schema &schema, int)
{
    write_mark(sql, schema.ledger_name, "p.applied");
}

void write_mark_stats(StringInfo sql, const Schema &schema, int)
{
    write_mark(sql, schema.stat_events_name, "p.applied AND NOT p.quarantined");
}

std::span<std::int64_t> users_of(SPIPlanPtr plan, Datum ids)
{
    execute(plan, {&ids, 1}, SPI_OK_SELECT);
    const Rows rows;
    std::span<std::int64_t> users = allocate<std::int64_t>(rows.count());
    for (uint64 row = 0; row < rows.count(); row++)
        users[row] = rows.integer(row, 1);
    return users;
}

std::span<std::int64_t> lock_named_users(const Schema &schema, Batch &batch, Attempt attempt)
{
    const Oid types[] = {INT8ARRAYOID};
    const int variant = static_cast<int>(attempt);
    const Datum ids = array_of(named_users(batch));
    std::span<std::int64_t> locked =
        users_of(prepared(lock_users_statement[variant], schema, write_lock_users, variant, types), ids);
    if (attempt == Attempt::optimistic || locked.size() == named_users(batch).size())
        return locked;

    // Which of those that were passed over are there? Their rows wait; they are not missing.
    std::span<std::int64_t> existing =
        users_of(prepared(existing_users_statement, schema, write_existing_users, 0, types), ids);
    for (const std::int64_t user : existing)
        if (!std::binary_search(locked.begin(), locked.end(), user))
            require_ok(refuse(batch, {.table = Table::users,
                                      .column = column::user_existence,
                                      .cause = Cause::locked,
                                      .key = TargetKey{.user = user}}));
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

void mark(SPIPlanPtr plan, std::span<const std::int64_t> ids, const char *table)
{
    if (ids.empty())
        return;
    const Datum parameters[] = {array_of(ids)};
    execute(plan, parameters, SPI_OK_SELECT);
    const auto marked = static_cast<std::size_t>(Rows().integer(0, 1));
    if (marked != ids.size())
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("only %zu of %zu rows of table %s could be marked applied", marked, ids.size(), table),
                        errdetail("A trigger or rule of the table changed or skipped the others; nothing was folded."),
                        errhint("Remove the trigger or rule, or let updates of \"applied\" pass.")));
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
    return users_of(prepared(lock_users_statement[variant], schema, write_lock_users, variant, types), array_of(users));
}

std::int64_t quarantine(const Schema &schema, const Batch &batch)
{
    const std::span<const QuarantinedEvent> events = quarantined_events(batch);
    if (events.empty())
        return 0;
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
    std::size_t quarantined = 0;
    for (uint64 row = 0; row < rows.count(); row++)
        quarantined += rows.boolean(row, 1) ? 1 : 0;
    if (quarantined < quarantined_rows(batch))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("only %zu of %zu invalid rows of table %s could be quarantined", quarantined,
                               quarantined_rows(batch), schema.stat_events_name),
                        errdetail("A trigger or rule of the table changed or skipped the others; nothing was folded."),
                        errhint("Remove the trigger or rule, or let updates of \"quarantined\" pass.")));
    return static_cast<std::int64_t>(quarantined);
}

void mark_applied(const Schema &schema, const Batch &batch)
{
    const Oid types[] = {INT8ARRAYOID};
    mark(prepared(mark_ledger_statement, schema, write_mark_ledger, 0, types), currency_ids(batch), schema.ledger_name);
    mark(prepared(mark_stats_statement, schema, write_mark_stats, 0, types), stat_ids(batch), schema.stat_events_name);
}

} // namespace kudos::server
