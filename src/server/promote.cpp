#include "promote.hpp"

#include "mode.hpp"
#include "session.hpp"
#include "statement.hpp"

namespace kudos::server {
namespace {

enum Threshold { may_be_negative = 0, not_negative = 1 };

Statement candidates_statement[2];
Statement trust_statement;
Statement drainable_statement;
Statement emit_currency_statement;
Statement emit_stats_statement;
Statement lock_workers_statement;
Statement unpause_statement;

// Reads no row that need not be read: positive escrow has a partial index, and a user's suspicions
// are counted no further than the threshold.
void write_candidates(StringInfo sql, const Schema &schema, int threshold)
{
    appendStringInfo(sql,
                     "SELECT u.id::int8 FROM %s u WHERE u.evaluating_kudos > $1%s"
                     " AND u.created <= $2 AND u.oauth_id <> 'anon'"
                     " AND NOT EXISTS (SELECT FROM %s r WHERE r.user_id = u.id AND r.user_role = 'TRUSTED' AND r.value)"
                     " AND (SELECT count(*) FROM (SELECT FROM %s s WHERE s.user_id = u.id LIMIT $3) counted) < $3"
                     " ORDER BY u.id",
                     schema.of(Table::users).name, threshold == not_negative ? " AND u.evaluating_kudos > 0" : "",
                     schema.user_roles_name, schema.user_suspicions_name);
}

void write_trust(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "INSERT INTO %s AS r (user_id, user_role, value)"
                     " SELECT k.user_id, 'TRUSTED', true FROM unnest($1::int8[]) WITH ORDINALITY k(user_id, ord)"
                     " ORDER BY k.ord ON CONFLICT (user_id, user_role) DO UPDATE SET value = true"
                     " RETURNING r.user_id::int8, r.user_role = 'TRUSTED' AND r.value",
                     schema.user_roles_name);
}

// The exact escrow: of one that rounds to 0, the column shows nothing. From those who have some, whom
// partial indexes name, to those who are trusted: the other way round reads every trusted user.
void write_drainable(StringInfo sql, const Schema &schema, int)
{
    const TargetTable &users = schema.of(Table::users);
    appendStringInfo(
        sql,
        "WITH escrowed AS MATERIALIZED (SELECT p.id FROM %s p WHERE p.evaluating_kudos > 0"
        " UNION SELECT f.id FROM %s f WHERE f.evaluating_kudos > 0),"
        " trusted AS MATERIALIZED (SELECT e.id FROM escrowed e WHERE EXISTS (SELECT FROM %s t"
        " WHERE t.user_id = e.id AND t.user_role = 'TRUSTED' AND t.value OFFSET 0))"
        " SELECT u.id::int8,"
        " (u.evaluating_kudos + coalesce(r.evaluating_kudos, 0) * 0.01)::numeric(22,2)::text,"
        " gen_random_uuid() FROM trusted t JOIN %s u ON u.id = t.id LEFT JOIN %s r ON r.id = u.id"
        " WHERE u.evaluating_kudos + coalesce(r.evaluating_kudos, 0) * 0.01 > 0"
        " AND NOT EXISTS (SELECT FROM %s l WHERE l.user_id = u.id AND l.entry_type = 'EVALUATION_PROMOTION'"
        " AND NOT l.applied AND l.applied IS FALSE) ORDER BY u.id",
        users.name, users.remainder, schema.user_roles_name, users.name, users.remainder, schema.ledger_name);
}

void write_emit_currency(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(
        sql,
        "INSERT INTO %s AS l (created, event_id, entry_type, user_id, escrow, amount, applied)"
        " SELECT $4, k.event_id, 'EVALUATION_PROMOTION', k.user_id, half.escrow,"
        " CASE WHEN half.escrow THEN -k.amount::numeric ELSE k.amount::numeric END, false"
        " FROM unnest($1::int8[], $2::text[], $3::uuid[]) WITH ORDINALITY k(user_id, amount, event_id, ord),"
        " (VALUES (true, 1), (false, 2)) half(escrow, place) ORDER BY k.ord, half.place"
        " RETURNING l.user_id::int8, NOT l.applied, l.amount::text, l.event_id, l.escrow",
        schema.ledger_name);
}

void write_emit_stats(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(
        sql,
        "INSERT INTO %s AS e (created, event_id, entry_type, user_id, amount, unit, stat_action, record, applied)"
        " SELECT $4, k.event_id, 'EVALUATION_PROMOTION', k.user_id, k.amount::numeric, 'kudos',"
        " 'accumulated', 'user_kudos', false"
        " FROM unnest($1::int8[], $2::text[], $3::uuid[]) WITH ORDINALITY k(user_id, amount, event_id, ord)"
        " ORDER BY k.ord RETURNING e.user_id::int8, NOT e.applied AND e.unit = 'kudos'"
        " AND e.stat_action = 'accumulated' AND e.record = 'user_kudos', e.amount::text, e.event_id",
        schema.stat_events_name);
}

void write_lock_workers(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "SELECT w.id FROM %s w WHERE w.id = ANY ($1) OR (w.user_id = ANY ($2) AND w.paused)"
                     " ORDER BY w.id FOR NO KEY UPDATE OF w",
                     schema.of(Table::workers).name);
}

void write_unpause(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql, "UPDATE %s w SET paused = false WHERE w.user_id = ANY ($1) AND w.paused",
                     schema.of(Table::workers).name);
}

// ---------------------------------------------------------------------------------------------

Timestamp created_before()
{
    return utc_now() - static_cast<int64>(kudos_trust_minimum_age) * USECS_PER_SEC;
}

std::span<std::int64_t> candidates(const Schema &schema)
{
    const Oid types[] = {NUMERICOID, TIMESTAMPOID, INT8OID};
    const Datum threshold = DirectFunctionCall3(numeric_in, CStringGetDatum(kudos_trust_threshold),
                                                ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1));
    const Datum parameters[] = {threshold, TimestampGetDatum(created_before()),
                                Int64GetDatum(kudos_suspicion_threshold)};
    const int variant = kudos_trust_threshold[0] == '-' ? may_be_negative : not_negative;
    execute(prepared(candidates_statement[variant], schema, write_candidates, variant, types), parameters,
            SPI_OK_SELECT);
    const Rows rows;
    std::span<std::int64_t> users = allocate<std::int64_t>(rows.count());
    for (uint64 row = 0; row < rows.count(); row++)
        users[row] = rows.integer(row, 1);
    return users;
}

// Counts and values are compared: a role given to somebody else, or half a pair, must not be committed.
void require_intended(bool intended, const char *table)
{
    if (!intended)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("a promotion could not be written to table %s as intended", table),
                        errdetail("A trigger or rule of the table changed or skipped rows; nobody was promoted."),
                        errhint("Remove the trigger or rule, or let the projector's rows pass.")));
}

void trust(const Schema &schema, std::span<const std::int64_t> users)
{
    const Oid types[] = {INT8ARRAYOID};
    const Datum parameters[] = {array_of(users)};
    execute(prepared(trust_statement, schema, write_trust, 0, types), parameters, SPI_OK_INSERT_RETURNING);
    const Rows rows;
    bool intended = rows.count() == users.size();
    for (uint64 row = 0; intended && row < rows.count(); row++)
        intended = rows.integer(row, 1) == users[row] && rows.boolean(row, 2);
    require_intended(intended, schema.user_roles_name);
}

// Whether a stored row carries the amount of a drained user, as columns 1 to 4, or its negative.
bool is_drain_of(const Rows &made, uint64 row, const Rows &drained, uint64 user, bool negative)
{
    Cents stored;
    Cents escrow;
    return made.integer(row, 1) == drained.integer(user, 1) && made.boolean(row, 2) &&
           made.cents(row, 3, stored) == Parsed::exact && drained.cents(user, 2, escrow) == Parsed::exact &&
           stored == (negative ? -escrow : escrow) && made.uuid(row, 4) == drained.uuid(user, 3);
}

void require_pairs(const Rows &drained, const char *table)
{
    const Rows made;
    bool intended = made.count() == 2 * drained.count();
    for (uint64 row = 0; intended && row < made.count(); row++) {
        const bool debit = row % 2 == 0;
        intended = is_drain_of(made, row, drained, row / 2, debit) && made.boolean(row, 5) == debit;
    }
    require_intended(intended, table);
}

void require_counters(const Rows &drained, const char *table)
{
    const Rows made;
    bool intended = made.count() == drained.count();
    for (uint64 row = 0; intended && row < made.count(); row++)
        intended = is_drain_of(made, row, drained, row, false);
    require_intended(intended, table);
}

// The unapplied pair itself is the guard against a second one.
std::int64_t drain(const Schema &schema)
{
    execute(prepared(drainable_statement, schema, write_drainable, 0, {}), {}, SPI_OK_SELECT);
    const Rows rows;
    const auto count = static_cast<std::size_t>(rows.count());
    if (count == 0)
        return 0;
    std::span<uint64> numbers = allocate<uint64>(count);
    for (std::size_t i = 0; i < count; i++)
        numbers[i] = i;
    const std::span<const uint64> each = numbers;
    const Datum parameters[] = {
        array_from(each, INT8OID, [&](uint64 row) { return rows.datum(row, 1); }),
        array_from(each, TEXTOID, [&](uint64 row) { return rows.datum(row, 2); }),
        array_from(each, UUIDOID, [&](uint64 row) { return rows.datum(row, 3); }),
        TimestampGetDatum(utc_now()),
    };
    const Oid types[] = {INT8ARRAYOID, TEXTARRAYOID, UUIDARRAYOID, TIMESTAMPOID};
    execute(prepared(emit_currency_statement, schema, write_emit_currency, 0, types), parameters,
            SPI_OK_INSERT_RETURNING);
    require_pairs(rows, schema.ledger_name);
    execute(prepared(emit_stats_statement, schema, write_emit_stats, 0, types), parameters, SPI_OK_INSERT_RETURNING);
    require_counters(rows, schema.stat_events_name);
    return static_cast<std::int64_t>(count);
}

} // namespace

Promotion promote_and_drain(const Schema &schema)
{
    Promotion promotion{};
    if (pin_mode(schema) != LedgerMode::ledger)
        return promotion;
    const int pinned = pin_plans(schema);
    if (kudos_trust_threshold[0] != '\0')
        promotion.users = candidates(schema);
    unpin_plans(pinned);
    if (!promotion.users.empty())
        trust(schema, promotion.users);
    promotion.drained_users = drain(schema);
    return promotion;
}

void unpause_workers(const Schema &schema, const Batch &batch, std::span<const std::int64_t> promoted)
{
    if (promoted.empty())
        return;
    const Oid lock_types[] = {UUIDARRAYOID, INT8ARRAYOID};
    const Datum lock_parameters[] = {
        array_from(deltas(batch, Table::workers), UUIDOID,
                   [](const TargetDelta &delta) { return uuid_datum(delta.key.uuid); }),
        array_of(promoted),
    };
    execute(prepared(lock_workers_statement, schema, write_lock_workers, 0, lock_types), lock_parameters,
            SPI_OK_SELECT);
    const Oid types[] = {INT8ARRAYOID};
    const Datum parameters[] = {array_of(promoted)};
    execute(prepared(unpause_statement, schema, write_unpause, 0, types), parameters, SPI_OK_UPDATE);
}

} // namespace kudos::server
