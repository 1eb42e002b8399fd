// kudos_check_schema(): what is wrong with the Horde's tables, one row a problem (contract, section 11).
// Reads catalogs, and runs nothing that a user could have put there with more rights than he has.
#include "pg.hpp"

extern "C" {
#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/dbcommands.h"
#include "funcapi.h"
#include "utils/rel.h"
}

#include "claim.hpp"
#include "entry.h"
#include "indexes.hpp"
#include "memory.hpp"
#include "schema.hpp"
#include "session.hpp"
#include "shared_state.hpp"

namespace kudos::server {
namespace {

constexpr const char *error = "error";
constexpr const char *warning = "warning";
constexpr const char *info = "info";

// Tables that the projector reads or writes.
constexpr const char *projector_tables[] = {"kudos_ledger",
                                            "kudos_stat_events",
                                            "kudos_reservations",
                                            "kudos_balance_snapshots",
                                            "kudos_ledger_applier_state",
                                            "kudos_ledger_control",
                                            "users",
                                            "user_stats",
                                            "worker_stats",
                                            "user_records",
                                            "workers",
                                            "teams",
                                            "user_roles",
                                            "user_suspicions"};

// Dead entries of a queue index that autovacuum may leave before it starts: twice what the Horde's
// own settings leave.
constexpr int patience = 500000;

struct Check {
    ReturnSetInfo *results;
    Oid namespace_oid;
};
static_assert(jump_safe<Check>);

void report(const Check &check, const char *severity, const char *object, const char *problem, const char *remedy)
{
    Datum values[] = {CStringGetTextDatum(severity), CStringGetTextDatum(object), CStringGetTextDatum(problem),
                      CStringGetTextDatum(remedy)};
    bool nulls[lengthof(values)] = {};
    tuplestore_putvalues(check.results->setResult, check.results->setDesc, values, nulls);
}

const char *table_name(const char *table)
{
    return quote_qualified_identifier(kudos_schema, table);
}

// ---------------------------------------------------------------------------------------------
// Errors: what every cycle checks

// True: types are as they should be, so that conditions on them can be compared.
bool report_faults(const Check &check, const List *faults)
{
    bool types_fit = true;
    ListCell *cell;
    foreach (cell, faults) {
        const Fault *fault = static_cast<const Fault *>(lfirst(cell));
        report(check, error, fault->object,
               fault->detail != nullptr ? psprintf("%s. %s", fault->message, fault->detail) : fault->message,
               fault->hint);
        types_fit = types_fit && fault->code != ERRCODE_DATATYPE_MISMATCH;
    }
    return types_fit;
}

// ---------------------------------------------------------------------------------------------
// Indexes

void check_claims(const Check &check)
{
    const ClaimPlans plans = plan_claims(current_schema());
    constexpr const char *problem = "the claim, as this session plans it, reads everything instead of the queue index";
    constexpr const char *remedy = "RESET enable_indexscan; RESET random_page_cost; -- where the database or the role "
                                   "sets them, use ALTER DATABASE or ALTER ROLE";
    if (!plans.currency_reads_queue_index)
        report(check, warning, psprintf("table %s", table_name("kudos_ledger")), problem, remedy);
    if (!plans.stats_read_queue_index)
        report(check, warning, psprintf("table %s", table_name("kudos_stat_events")), problem, remedy);
}

bool is_remedy_of(const List *faults, const char *statement)
{
    ListCell *cell;
    foreach (cell, faults)
        if (strcmp(static_cast<const Fault *>(lfirst(cell))->hint, statement) == 0)
            return true;
    return false;
}

void check_indexes(const Check &check, const List *faults)
{
    for (const IndexForm &wanted : horde_indexes) {
        const Oid table = get_relname_relid(wanted.table, check.namespace_oid);
        if (wanted.without_it == nullptr || !OidIsValid(table) || get_rel_relkind(table) != RELKIND_RELATION)
            continue;
        Relation relation = relation_open(table, AccessShareLock);
        const bool found = has_index(relation, wanted);
        relation_close(relation, AccessShareLock);
        const char *remedy = create_index(wanted, nullptr, true);
        if (!found && !is_remedy_of(faults, remedy))
            report(check, warning, psprintf("table %s", table_name(wanted.table)),
                   psprintf("has no valid index like %s: %s", wanted.name, wanted.without_it), remedy);
    }
}

// ---------------------------------------------------------------------------------------------
// The rest is asked of the catalogs. Each query gives severity, object, problem, remedy, and has four
// parameters: the schema, the tables of the projector, those of them that are queues, and the storage
// parameters of those.

// The columns that a cycle updates; a trigger on others does not concern it.
#define WRITTEN_COLUMNS                                                                                                \
    "'{kudos,evaluating_kudos,last_active,value,contributions,fulfilments,applied,quarantined,quarantine_reason,"      \
    "quarantined_at,remaining_amount,released_at,applied_at,paused}'::name[]"

// Bits of tgtype: 4 INSERT, 16 UPDATE.
constexpr const char *trigger_query = R"sql(
SELECT 'warning',
       format('trigger %I of %I.%I', t.tgname, n.nspname, c.relname),
       CASE WHEN t.tginitdeferred
            THEN 'is deferred: a fold by anybody but the owner of kudos_ledger is refused when it would fire'
            ELSE 'fires on what the projector writes: what it changes or vetoes is not folded' END,
       format('ALTER TABLE %I.%I DISABLE TRIGGER %I; -- or ', n.nspname, c.relname, t.tgname) ||
       CASE WHEN t.tginitdeferred THEN 'create it anew NOT DEFERRABLE, or let the worker alone fold'
            ELSE 'make sure that it lets the projector''s changes pass' END
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relnamespace = $1 AND c.relname = ANY ($2) AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A')
   AND t.tgtype & 20 <> 0
   AND (t.tgtype & 4 <> 0 OR t.tgattr::text = ''
        OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = t.tgrelid AND a.attnum = ANY (t.tgattr)
                      AND a.attname = ANY ()sql" WRITTEN_COLUMNS R"sql()))
 ORDER BY c.relname, t.tgname)sql";

constexpr const char *rule_query = R"sql(
SELECT 'warning',
       format('rule %I of %I.%I', r.rulename, n.nspname, c.relname),
       'rewrites what the projector writes: what it changes or swallows is not folded',
       format('ALTER TABLE %I.%I DISABLE RULE %I; -- or make sure that it lets the projector''s changes pass',
              n.nspname, c.relname, r.rulename)
  FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relnamespace = $1 AND c.relname = ANY ($2) AND c.relkind = 'r' AND r.ev_enabled IN ('O', 'A')
   AND r.ev_type IN ('2', '3')
 ORDER BY c.relname, r.rulename)sql";

constexpr const char *deferred_key_query = R"sql(
SELECT 'warning',
       format('constraint %I of %I.%I', k.conname, n.nspname, c.relname),
       'is deferred: a fold by anybody but the owner of kudos_ledger is refused when it would be checked',
       format('ALTER TABLE %I.%I ALTER CONSTRAINT %I NOT DEFERRABLE; -- or let the worker alone fold',
              n.nspname, c.relname, k.conname)
  FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relnamespace = $1 AND c.relname = ANY ($2) AND k.contype = 'f' AND k.condeferred
 ORDER BY c.relname, k.conname)sql";

// An index under construction is not valid either; its builder holds this lock throughout.
constexpr const char *leftover_query = R"sql(
SELECT 'warning',
       format('index %I.%I', n.nspname, i.relname),
       'is INVALID, left by a CREATE INDEX or REINDEX CONCURRENTLY that failed: it is written and serves nobody',
       format('DROP INDEX CONCURRENTLY %I.%I; -- then build it again if it is missed', n.nspname, i.relname)
  FROM pg_class c JOIN pg_index x ON x.indrelid IN (c.oid, c.reltoastrelid)
  JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_namespace n ON n.oid = i.relnamespace
 WHERE c.relnamespace = $1 AND c.relname = ANY ($2) AND NOT x.indisvalid
   AND NOT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                    WHERE d.datname = current_database() AND l.locktype = 'relation' AND l.relation = x.indrelid
                      AND l.mode = 'ShareUpdateExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid())
 ORDER BY i.relname)sql";

constexpr const char *vacuum_query = R"sql(
WITH settings AS (
  SELECT n.nspname, c.relname, q.storage, c.reltuples, o.enabled,
         coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold')::float8)
         + coalesce(o.scale, current_setting('autovacuum_vacuum_scale_factor')::float8) * greatest(c.reltuples, 0)
         AS dead_rows
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN unnest($3, $4) q(relname, storage) ON q.relname = c.relname
    CROSS JOIN LATERAL (SELECT max(option_value) FILTER (WHERE option_name = 'autovacuum_enabled')::bool AS enabled,
                               max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold')::float8
                                 AS threshold,
                               max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_scale_factor')::float8
                                 AS scale
                          FROM pg_options_to_table(c.reloptions)) o
   WHERE c.relnamespace = $1 AND c.relname = ANY ($2) AND c.relkind = 'r')
SELECT 'warning', 'setting ' || s.name, 'is off: dead rows and index entries pile up in every table of the projector',
       format('ALTER SYSTEM SET %I = on; SELECT pg_reload_conf();', s.name)
  FROM unnest('{autovacuum,track_counts}'::text[]) s(name) WHERE NOT current_setting(s.name)::bool
UNION ALL
SELECT 'warning', format('table %I.%I', nspname, relname), 'has autovacuum off: dead rows and index entries pile up',
       format('ALTER TABLE %I.%I RESET (autovacuum_enabled);', nspname, relname)
  FROM settings WHERE NOT enabled
UNION ALL
SELECT 'warning', format('table %I.%I', nspname, relname),
       format('autovacuum waits for %s dead rows, which every claim walks past', dead_rows::numeric(20, 0)),
       format('ALTER TABLE %I.%I SET (%s);', nspname, relname, storage)
  FROM settings WHERE storage IS NOT NULL AND dead_rows > )sql";

// The zones in which sessions of this database may begin, and what takes its time from them.
constexpr const char *time_zone_query = R"sql(
WITH settings AS (
  SELECT s.setdatabase, s.setrole, split_part(v.value, '=', 2) AS zone
    FROM pg_db_role_setting s, unnest(s.setconfig) v(value) JOIN pg_database d ON d.datname = current_database()
   WHERE s.setdatabase IN (0, d.oid) AND split_part(v.value, '=', 1) = 'TimeZone'),
zones AS (
  SELECT coalesce((SELECT zone FROM settings WHERE setrole = 0),
                  (SELECT reset_val FROM pg_settings WHERE name = 'TimeZone')) AS zone
  UNION SELECT zone FROM settings WHERE setrole <> 0),
foreign_zones AS (
  SELECT string_agg(zone, ', ' ORDER BY zone) AS list FROM zones
   WHERE lower(zone) <> ALL ('{utc,etc/utc,uct,etc/uct,gmt,etc/gmt,gmt0,zulu,etc/zulu,universal,etc/universal}'))
SELECT CASE WHEN f.list IS NULL THEN 'info' ELSE 'warning' END,
       format('column %I.%I.%I', n.nspname, c.relname, a.attname),
       format('holds UTC, but defaults to %s, the time in the zone of the session', e.expression) ||
       CASE WHEN f.list IS NULL THEN '; no harm is done while that is UTC'
            ELSE format('; here sessions begin in %s', f.list) END,
       format('ALTER TABLE %I.%I ALTER COLUMN %I SET DEFAULT (now() AT TIME ZONE ''utc'');',
              n.nspname, c.relname, a.attname)
  FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
  JOIN pg_class c ON c.oid = d.adrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  CROSS JOIN LATERAL (SELECT pg_get_expr(d.adbin, d.adrelid) AS expression) e CROSS JOIN foreign_zones f
 WHERE c.relnamespace = $1 AND c.relname = ANY ($2) AND a.atttypid = 'timestamp'::regtype AND NOT a.attisdropped
   AND e.expression ~* '\m(now|(statement|clock|transaction)_timestamp)\(|current_timestamp|localtimestamp'
   AND e.expression !~* 'at time zone ''(utc|gmt)''|timezone\(''(utc|gmt)'''
 ORDER BY c.relname, a.attname)sql";

Datum name_array(std::span<const char *const> names)
{
    std::span<Datum> values = allocate<Datum>(names.size());
    for (std::size_t i = 0; i < names.size(); i++)
        values[i] = CStringGetTextDatum(names[i]);
    return PointerGetDatum(
        construct_array(values.data(), static_cast<int>(names.size()), TEXTOID, -1, false, TYPALIGN_INT));
}

void ask(const Check &check, const char *query)
{
    const char *queues[table_count];
    const char *storage[table_count];
    std::size_t count = 0;
    for (const TableForm &form : ledger_tables)
        if (form.storage != nullptr) {
            queues[count] = form.name;
            storage[count++] = form.storage;
        }
    Oid types[] = {OIDOID, TEXTARRAYOID, TEXTARRAYOID, TEXTARRAYOID};
    Datum parameters[] = {ObjectIdGetDatum(check.namespace_oid), name_array(projector_tables),
                          name_array({queues, count}), name_array({storage, count})};
    if (SPI_execute_with_args(query, lengthof(types), types, parameters, nullptr, true, 0) != SPI_OK_SELECT)
        elog(ERROR, "could not read the catalogs");
    for (uint64 row = 0; row < SPI_processed; row++) {
        HeapTuple tuple = SPI_tuptable->vals[row];
        TupleDesc columns = SPI_tuptable->tupdesc;
        report(check, SPI_getvalue(tuple, columns, 1), SPI_getvalue(tuple, columns, 2), SPI_getvalue(tuple, columns, 3),
               SPI_getvalue(tuple, columns, 4));
    }
}

// ---------------------------------------------------------------------------------------------
// The worker

void check_worker(const Check &check)
{
    const char *problem = why_no_worker();
    if (problem == nullptr)
        return;
    const char *database = quote_identifier(get_database_name(MyDatabaseId));
    const char *remedy = psprintf(
        "ALTER SYSTEM SET kudos_projector.databases = %s; SELECT pg_reload_conf();",
        quote_literal_cstr(kudos_databases[0] == '\0' ? database : psprintf("%s, %s", kudos_databases, database)));
    if (shared_state() == nullptr)
        remedy = "Add kudos_projector to shared_preload_libraries and restart the server.";
    else if (!kudos_enabled)
        remedy = "ALTER SYSTEM RESET kudos_projector.enabled; SELECT pg_reload_conf();";
    report(check, info, psprintf("database %s", database), problem, remedy);
}

// The owner of kudos_ledger, as everywhere; with it missing, the owner of what there is. Looking at
// an index evaluates what its condition calls, which must not run with the rights of the caller.
Oid choose_role(Oid namespace_oid)
{
    for (const char *table : projector_tables) {
        const Oid relation = get_relname_relid(table, namespace_oid);
        if (OidIsValid(relation))
            return owner_of_relation(relation);
    }
    return GetUserId();
}

void check_all(const Check &check)
{
    const List *faults = schema_faults();
    const bool types_fit = report_faults(check, faults);
    if (!OidIsValid(check.namespace_oid))
        return;
    if (faults == NIL)
        check_claims(check);
    if (types_fit)
        check_indexes(check, faults);
    ask(check, leftover_query);
    ask(check, trigger_query);
    ask(check, rule_query);
    ask(check, deferred_key_query);
    ask(check, psprintf("%s%d ORDER BY 2", vacuum_query, patience));
    ask(check, time_zone_query);
}

} // namespace
} // namespace kudos::server

Datum kudos_entry_check_schema(FunctionCallInfo fcinfo)
{
    using namespace kudos::server;
    InitMaterializedSRF(fcinfo, 0);
    const Check check{reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo), get_namespace_oid(kudos_schema, true)};
    const Acting acting = act_as(choose_role(check.namespace_oid));
    limit_lock_waits();
    SPI_connect();
    check_all(check);
    check_worker(check);
    SPI_finish();
    stop_acting(acting);
    return Datum{0};
}
