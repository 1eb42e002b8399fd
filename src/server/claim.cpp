#include "claim.hpp"

extern "C" {
#include "catalog/pg_index.h"
#include "mb/pg_wchar.h"
#include "utils/plancache.h"
#include "utils/resowner.h"
#include "utils/syscache.h"
}

#include "statement.hpp"

namespace kudos::server {
namespace {

// Variant 0 is the ordinary claim; variant 1 leaves out the rows of withheld targets.
enum Variant { plain = 0, with_withheld = 1 };

Statement claim_currency_statement[2];
Statement claim_stats_statement[2];
Statement quarantined_event_statement;
Statement count_queued_statement;

// Both spellings of the predicate: each queue index, however it is spelled, follows from one of
// them, but the server proves neither from the other.
void write_claim_currency(StringInfo sql, const Schema &schema, int variant)
{
    appendStringInfo(sql,
                     "SELECT l.id::int8, l.event_id, l.user_id::int8, l.escrow, l.amount::text,"
                     " CASE WHEN l.amount < 0 AND NOT l.escrow AND jsonb_typeof(l.detail -> 'reservation_id') ="
                     " 'string' THEN l.detail ->> 'reservation_id' END"
                     " FROM %s l WHERE NOT l.applied AND l.applied IS FALSE AND l.id > $1",
                     schema.ledger_name);
    if (variant == with_withheld)
        appendStringInfoString(sql, " AND l.user_id <> ALL (CASE WHEN l.escrow THEN $4::int8[] ELSE $3::int8[] END)"
                                    " AND l.event_id <> ALL ($6) AND (l.escrow OR l.amount >= 0"
                                    " OR coalesce(l.detail ->> 'reservation_id' <> ALL ($5), true))");
    appendStringInfoString(sql, " ORDER BY l.id LIMIT $2 FOR UPDATE OF l SKIP LOCKED");
}

// What read_stat reads.
void append_stat_columns(StringInfo sql)
{
    appendStringInfoString(sql, "SELECT e.id::int8, e.event_id, e.user_id::int8, e.worker_id, e.team_id,"
                                " e.amount::text, e.created, e.entry_type::text, e.unit::text, e.stat_action::text,"
                                " e.record::text, coalesce(e.detail -> 'touch_last_active' NOT IN"
                                " ('null', 'false', '0', '\"\"', '[]', '{}'), false)");
}

void write_count_queued(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "SELECT (SELECT count(*) FROM %s WHERE NOT applied AND applied IS FALSE),"
                     " (SELECT count(*) FROM %s WHERE NOT applied AND applied IS FALSE"
                     " AND NOT quarantined AND quarantined IS FALSE)",
                     schema.ledger_name, schema.stat_events_name);
}

void write_quarantined_event(StringInfo sql, const Schema &schema, int)
{
    append_stat_columns(sql);
    appendStringInfo(sql,
                     " FROM %s e WHERE e.event_id = $1 AND e.quarantined AND NOT e.applied"
                     " ORDER BY e.id FOR UPDATE OF e",
                     schema.stat_events_name);
}

// A withheld target is a pattern of the columns that lead to it; NULL stands for any value.
void write_claim_stats(StringInfo sql, const Schema &schema, int variant)
{
    append_stat_columns(sql);
    appendStringInfo(sql,
                     " FROM %s e WHERE NOT e.applied AND e.applied IS FALSE"
                     " AND NOT e.quarantined AND e.quarantined IS FALSE AND e.id > $1",
                     schema.stat_events_name);
    if (variant == with_withheld)
        appendStringInfoString(
            sql, " AND NOT EXISTS (SELECT FROM unnest($3::int8[], $4::uuid[], $5::uuid[], $6::text[], $7::text[],"
                 " $8::bool[]) w(user_id, worker_id, team_id, stat_action, record, touch)"
                 " WHERE (w.user_id IS NULL OR w.user_id = e.user_id)"
                 " AND (w.worker_id IS NULL OR w.worker_id = e.worker_id)"
                 " AND (w.team_id IS NULL OR w.team_id = e.team_id)"
                 " AND (w.stat_action IS NULL OR w.stat_action = e.stat_action)"
                 " AND (w.record IS NULL OR w.record = e.record)"
                 " AND (NOT w.touch OR e.detail ? 'touch_last_active'))");
    appendStringInfoString(sql, " ORDER BY e.id LIMIT $2 FOR UPDATE OF e SKIP LOCKED");
}

// ---------------------------------------------------------------------------------------------
// Withheld targets as parameters

std::span<std::int64_t> withheld_users(std::span<const Withheld> withheld, int column)
{
    std::span<std::int64_t> users = allocate<std::int64_t>(withheld.size());
    std::size_t count = 0;
    for (const Withheld &held : withheld)
        if (held.table == Table::users && (held.column == column::any || held.column == column))
            users[count++] = held.key.user;
    return users.first(count);
}

std::span<const Withheld> withheld_holds(std::span<const Withheld> withheld)
{
    std::span<Withheld> holds = allocate<Withheld>(withheld.size());
    std::size_t count = 0;
    for (const Withheld &held : withheld)
        if (held.table == Table::reservations)
            holds[count++] = held;
    return holds.first(count);
}

bool feeds_from_stats(const Withheld &held)
{
    // Rows that are withheld themselves are claimed once a tick, and left out by the core.
    if (held.table == Table::reservations || held.table == Table::ledger_rows || held.table == Table::stat_rows)
        return false;
    return held.table != Table::users || held.column == column::any || held.column >= column::user_activity;
}

Datum pattern_array(std::span<const Withheld> withheld, Oid type, bool (*applies)(const Withheld &),
                    Datum (*value)(const Withheld &))
{
    std::span<Datum> values = allocate<Datum>(withheld.size());
    std::span<bool> nulls = allocate<bool>(withheld.size());
    std::size_t count = 0;
    for (const Withheld &held : withheld) {
        if (!feeds_from_stats(held))
            continue;
        nulls[count] = !applies(held);
        values[count++] = applies(held) ? value(held) : Datum{0};
    }
    return array_with_nulls(values.first(count), nulls.first(count), type);
}

bool by_user(const Withheld &held)
{
    return held.table == Table::users || held.table == Table::user_stats || held.table == Table::user_records;
}

bool by_worker(const Withheld &held)
{
    return held.table == Table::workers || held.table == Table::worker_stats;
}

bool by_team(const Withheld &held)
{
    return held.table == Table::teams;
}

bool sums_workers(const Withheld &held)
{
    return (held.table == Table::workers || held.table == Table::teams) && held.column != column::any;
}

bool by_action(const Withheld &held)
{
    return held.table == Table::user_stats || held.table == Table::worker_stats || held.table == Table::user_records ||
           (sums_workers(held) && held.column != column::kudos);
}

Datum action_of(const Withheld &held)
{
    if (sums_workers(held))
        return text_datum(held.column == column::contributions ? "contributions" : "fulfilments");
    return text_datum(held.key.action);
}

bool by_record(const Withheld &held)
{
    return held.table == Table::user_stats || held.table == Table::worker_stats || held.table == Table::user_records ||
           (sums_workers(held) && held.column == column::kudos);
}

Datum record_of(const Withheld &held)
{
    if (held.table == Table::user_records)
        return text_datum(held.key.record);
    return text_datum(held.table == Table::user_stats ? "user_kudos" : "worker_kudos");
}

bool always(const Withheld &)
{
    return true;
}

Datum touches(const Withheld &held)
{
    return BoolGetDatum(held.table == Table::users && held.column != column::user_existence);
}

// ---------------------------------------------------------------------------------------------
// Rows

CurrencyPosting read_currency(const Rows &rows, uint64 row)
{
    CurrencyPosting posting;
    posting.id = rows.integer(row, 1);
    posting.event = rows.uuid(row, 2);
    posting.user = rows.integer(row, 3);
    posting.escrow = rows.boolean(row, 4);
    posting.foldable = rows.cents(row, 5, posting.amount) == Parsed::exact;
    posting.names_reservation = !rows.is_null(row, 6);
    posting.reservation = rows.text(row, 6);
    return posting;
}

std::int32_t characters(std::string_view text)
{
    return pg_mbstrlen_with_len(text.data(), static_cast<int>(text.size()));
}

StatPosting read_stat(const Rows &rows, uint64 row)
{
    StatPosting posting;
    posting.id = rows.integer(row, 1);
    posting.event = rows.uuid(row, 2);
    posting.has_user = !rows.is_null(row, 3);
    posting.user = posting.has_user ? rows.integer(row, 3) : 0;
    posting.has_worker = !rows.is_null(row, 4);
    posting.worker = rows.uuid(row, 4);
    posting.has_team = !rows.is_null(row, 5);
    posting.team = rows.uuid(row, 5);
    posting.foldable = rows.cents(row, 6, posting.amount) == Parsed::exact;
    posting.created = rows.integer(row, 7);
    posting.entry_type = rows.text(row, 8);
    posting.unit = rows.text(row, 9);
    posting.has_action = !rows.is_null(row, 10);
    posting.action = rows.text(row, 10);
    posting.action_length = characters(posting.action);
    posting.has_record = !rows.is_null(row, 11);
    posting.record = rows.text(row, 11);
    posting.record_length = characters(posting.record);
    posting.touches = rows.boolean(row, 12);
    return posting;
}

std::span<StatPosting> read_stats()
{
    const Rows rows;
    std::span<StatPosting> postings = allocate<StatPosting>(rows.count());
    for (uint64 row = 0; row < rows.count(); row++)
        postings[row] = read_stat(rows, row);
    return postings;
}

std::span<CurrencyPosting> claim_currency(const Schema &schema, const ScanPosition &position, int batch_size,
                                          std::span<const Withheld> withheld)
{
    const Oid types[] = {INT8OID, INT8OID, INT8ARRAYOID, INT8ARRAYOID, TEXTARRAYOID, UUIDARRAYOID};
    const int variant = withheld.empty() ? plain : with_withheld;
    SPIPlanPtr plan = prepared(claim_currency_statement[variant], schema, write_claim_currency, variant,
                               std::span(types).first(variant == plain ? 2 : 6));
    Datum parameters[6] = {Int64GetDatum(position.after_ledger_id), Int64GetDatum(batch_size)};
    if (variant == with_withheld) {
        parameters[2] = array_of(withheld_users(withheld, column::user_kudos));
        parameters[3] = array_of(withheld_users(withheld, column::user_evaluating));
        const std::span<const Withheld> holds = withheld_holds(withheld);
        parameters[4] = array_from(holds, TEXTOID, [](const Withheld &held) { return text_datum(held.key.action); });
        parameters[5] = array_from(holds, UUIDOID, [](const Withheld &held) { return uuid_datum(held.key.uuid); });
    }
    execute(plan, parameters, SPI_OK_SELECT);
    const Rows rows;
    std::span<CurrencyPosting> postings = allocate<CurrencyPosting>(rows.count());
    for (uint64 row = 0; row < rows.count(); row++)
        postings[row] = read_currency(rows, row);
    return postings;
}

std::span<StatPosting> claim_stats(const Schema &schema, const ScanPosition &position, int batch_size,
                                   std::span<const Withheld> withheld)
{
    const Oid types[] = {INT8OID,      INT8OID,      INT8ARRAYOID, UUIDARRAYOID,
                         UUIDARRAYOID, TEXTARRAYOID, TEXTARRAYOID, BOOLARRAYOID};
    const int variant = withheld.empty() ? plain : with_withheld;
    SPIPlanPtr plan = prepared(claim_stats_statement[variant], schema, write_claim_stats, variant,
                               std::span(types).first(variant == plain ? 2 : 8));
    Datum parameters[8] = {Int64GetDatum(position.after_stat_id), Int64GetDatum(batch_size)};
    if (variant == with_withheld) {
        parameters[2] = pattern_array(withheld, INT8OID, by_user,
                                      [](const Withheld &held) { return Int64GetDatum(held.key.user); });
        parameters[3] =
            pattern_array(withheld, UUIDOID, by_worker, [](const Withheld &held) { return uuid_datum(held.key.uuid); });
        parameters[4] =
            pattern_array(withheld, UUIDOID, by_team, [](const Withheld &held) { return uuid_datum(held.key.uuid); });
        parameters[5] = pattern_array(withheld, TEXTOID, by_action, action_of);
        parameters[6] = pattern_array(withheld, TEXTOID, by_record, record_of);
        parameters[7] = pattern_array(withheld, BOOLOID, always, touches);
    }
    execute(plan, parameters, SPI_OK_SELECT);
    return read_stats();
}

// The index at the bottom of the plan; invalid OID: it ends in no index scan.
Oid scanned_index(const Plan *node)
{
    while (outerPlan(node) != nullptr)
        node = outerPlan(node);
    if (IsA(node, IndexScan))
        return reinterpret_cast<const IndexScan *>(node)->indexid;
    if (IsA(node, BitmapIndexScan))
        return reinterpret_cast<const BitmapIndexScan *>(node)->indexid;
    return InvalidOid;
}

bool is_partial(Oid index)
{
    HeapTuple tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
    const bool partial = HeapTupleIsValid(tuple) && !heap_attisnull(tuple, Anum_pg_index_indpred, nullptr);
    if (HeapTupleIsValid(tuple))
        ReleaseSysCache(tuple);
    return partial;
}

// While plans are pinned, the partial indexes are those of the queue, by id or by event. On a short queue
// a bitmap scan of either is as good.
bool reads_queue_index(SPIPlanPtr plan)
{
    CachedPlan *cached = SPI_plan_get_cached_plan(plan);
    if (cached == nullptr)
        return false;
    const Oid index = scanned_index(linitial_node(PlannedStmt, cached->stmt_list)->planTree);
    ReleaseCachedPlan(cached, CurrentResourceOwner);
    return OidIsValid(index) && is_partial(index);
}

bool plans_queue_index(const Schema &schema, WriteStatement write)
{
    Statement statement{}; // planned anew: what the session has may be older than its settings
    const Oid types[] = {INT8OID, INT8OID};
    SPIPlanPtr plan = prepared(statement, schema, write, plain, types);
    const bool reads = reads_queue_index(plan);
    SPI_freeplan(plan);
    return reads;
}

} // namespace

ClaimPlans plan_claims(const Schema &schema)
{
    const int pinned = pin_plans(schema);
    const ClaimPlans plans{plans_queue_index(schema, write_claim_currency),
                           plans_queue_index(schema, write_claim_stats)};
    unpin_plans(pinned);
    return plans;
}

Claim claim_postings(const Schema &schema, const ScanPosition &position, int batch_size,
                     std::span<const Withheld> withheld)
{
    const int pinned = pin_plans(schema, QueuePath::by_id);
    Claim claim;
    claim.currency = claim_currency(schema, position, batch_size, withheld);
    claim.stats = claim_stats(schema, position, batch_size, withheld);
    unpin_plans(pinned);
    const auto full = static_cast<std::size_t>(batch_size);
    claim.settled = claim.currency.size() < full && claim.stats.size() < full;
    return claim;
}

QueuedRows count_queued(const Schema &schema)
{
    const int pinned = pin_plans(schema);
    execute(prepared(count_queued_statement, schema, write_count_queued, 0, {}), {}, SPI_OK_SELECT);
    unpin_plans(pinned);
    const Rows rows;
    return {rows.integer(0, 1), rows.integer(0, 2)};
}

std::span<StatPosting> claim_quarantined_event(const Schema &schema, const Uuid &event)
{
    const Oid types[] = {UUIDOID};
    const Datum parameters[] = {uuid_datum(event)};
    execute(prepared(quarantined_event_statement, schema, write_quarantined_event, 0, types), parameters,
            SPI_OK_SELECT);
    return read_stats();
}

ScanPosition position_after(const Claim &claim, const ScanPosition &before)
{
    ScanPosition after = before;
    if (!claim.currency.empty())
        after.after_ledger_id = claim.currency.back().id;
    if (!claim.stats.empty())
        after.after_stat_id = claim.stats.back().id;
    return after;
}

} // namespace kudos::server
