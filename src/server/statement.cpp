#include "statement.hpp"

extern "C" {
#include "nodes/pathnodes.h"
#include "optimizer/plancat.h"
#include "utils/plancache.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"
}

#include "entry.h"
#include "holder.hpp"

namespace kudos::server {
namespace {

// Set while plans are pinned; an error leaves it set, so it is only believed at its own nesting.
const Schema *pinned_for = nullptr;
QueuePath pinned_path = QueuePath::any;
get_relation_info_hook_type previous_hook = nullptr;

bool leads_with_event(Oid relation, const IndexOptInfo *index)
{
    const auto first = static_cast<AttrNumber>(index->indexkeys[0]);
    const char *name = first > 0 ? get_attname(relation, first, true) : nullptr;
    return name != nullptr && strcmp(name, "event_id") == 0;
}

bool may_be_read(Oid relation, const IndexOptInfo *index, const QueueIndexes &queue)
{
    const int allowed = pinned_path == QueuePath::by_id ? queue.by_id : queue.count;
    for (int i = 0; i < allowed; i++)
        if (queue.oid[i] == index->indexoid)
            return true;
    return pinned_path == QueuePath::any && leads_with_event(relation, index);
}

void hide_other_indexes(RelOptInfo *rel, Oid relation, const QueueIndexes &queue)
{
    List *kept = NIL;
    ListCell *cell;
    foreach (cell, rel->indexlist) {
        IndexOptInfo *index = lfirst_node(IndexOptInfo, cell);
        if (may_be_read(relation, index, queue))
            kept = lappend(kept, index);
    }
    rel->indexlist = kept;
}

void relation_info_hook(PlannerInfo *root, Oid relation, bool inhparent, RelOptInfo *rel)
{
    if (previous_hook != nullptr)
        previous_hook(root, relation, inhparent, rel);
    if (pinned_for == nullptr)
        return;
    if (relation == pinned_for->ledger)
        hide_other_indexes(rel, relation, pinned_for->ledger_queue);
    else if (relation == pinned_for->stat_events)
        hide_other_indexes(rel, relation, pinned_for->stat_queue);
}

// An error anywhere between pin and unpin ends the (sub)transaction; the pin must not outlive it.
void forget_pin_at_abort(XactEvent event, void *)
{
    if (event == XACT_EVENT_ABORT)
        pinned_for = nullptr;
}

void forget_pin_at_subabort(SubXactEvent event, SubTransactionId, SubTransactionId, void *)
{
    if (event == SUBXACT_EVENT_ABORT_SUB)
        pinned_for = nullptr;
}

} // namespace

SPIPlanPtr prepared(Statement &statement, const Schema &schema, WriteStatement write, int variant,
                    std::span<const Oid> parameter_types)
{
    if (statement.plan != nullptr && statement.generation == schema.generation)
        return statement.plan;
    if (statement.plan != nullptr) {
        SPIPlanPtr old = statement.plan;
        statement.plan = nullptr;
        SPI_freeplan(old);
    }
    StringInfoData sql;
    initStringInfo(&sql);
    write(&sql, schema, variant);
    // A generic plan: parameters are arrays whose lengths say nothing that would change a good plan.
    SPIPlanPtr plan = SPI_prepare_cursor(sql.data, static_cast<int>(parameter_types.size()),
                                         const_cast<Oid *>(parameter_types.data()), CURSOR_OPT_GENERIC_PLAN);
    if (plan == nullptr)
        elog(ERROR, "could not prepare \"%s\": %s", sql.data, SPI_result_code_string(SPI_result));
    SPI_keepplan(plan);
    statement.plan = plan;
    statement.generation = schema.generation;
    return plan;
}

namespace {

// Generic plans are kept: one that was made while a table was small would go on reading all of it when
// it has grown. So each is made, or made anew after an invalidation, with sequential scans off; what
// runs it, triggers included, is planned as the session likes.
void plan_on_indexes(SPIPlanPtr plan)
{
    if (pinned_for != nullptr)
        return;
    const int level = NewGUCNestLevel();
    set_config_option("enable_seqscan", "off", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
    CachedPlan *generic = SPI_plan_get_cached_plan(plan);
    if (generic != nullptr)
        ReleaseCachedPlan(generic, CurrentResourceOwner);
    AtEOXact_GUC(false, level);
}

} // namespace

uint64 execute(SPIPlanPtr plan, std::span<const Datum> parameters, int expected_code, const char *nulls)
{
    Datum *values = const_cast<Datum *>(parameters.data());
    int code;
    // A search_path that a trigger of the owner sets would be what our next statement is read by, with what the
    // caller put into pg_temp before all else.
    const int settings = NewGUCNestLevel();
    plan_on_indexes(plan);
    if (IsolationUsesXactSnapshot()) {
        // The transaction's snapshot may be older than the lock that we hold: what was folded, spent or
        // switched since must be seen (contract, section 2: always READ COMMITTED).
        Snapshot latest = RegisterSnapshot(GetLatestSnapshot());
        code = SPI_execute_snapshot(plan, values, nulls, latest, InvalidSnapshot, XactReadOnly, true, 0);
        UnregisterSnapshot(latest);
    } else {
        code = SPI_execute_plan(plan, values, nulls, XactReadOnly, 0);
    }
    AtEOXact_GUC(false, settings);
    if (code == SPI_OK_REWRITTEN)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("a rule replaces a statement of the projector"),
                        errhint("Remove the rule; SELECT * FROM kudos_check_schema() names it.")));
    if (code != expected_code)
        elog(ERROR, "unexpected result of a statement: %s", SPI_result_code_string(code));
    return SPI_processed;
}

void write_exactly(SPIPlanPtr plan, std::span<const Datum> parameters, int expected_code, uint64 rows,
                   const char *table, const char *nulls)
{
    const uint64 written = execute(plan, parameters, expected_code, nulls);
    if (written != rows)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("only %llu of %llu rows could be written to table %s",
                               static_cast<unsigned long long>(written), static_cast<unsigned long long>(rows), table),
                        errhint("Remove the trigger or rule that keeps rows from it.")));
}

int pin_plans(const Schema &schema, QueuePath path)
{
    const int level = NewGUCNestLevel();
    set_config_option("enable_seqscan", "off", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
    pinned_for = &schema;
    pinned_path = path;
    return level;
}

void unpin_plans(int level)
{
    pinned_for = nullptr;
    AtEOXact_GUC(false, level);
}

Datum array_of(std::span<const std::int64_t> values)
{
    return array_from(values, INT8OID, [](std::int64_t value) { return Int64GetDatum(value); });
}

Datum array_of(std::span<const Uuid> values)
{
    return array_from(values, UUIDOID, uuid_datum);
}

Datum array_with_nulls(std::span<Datum> values, std::span<bool> nulls, Oid element_type)
{
    int16 length;
    bool by_value;
    char alignment;
    get_typlenbyvalalign(element_type, &length, &by_value, &alignment);
    int dimensions[1] = {static_cast<int>(values.size())};
    int bounds[1] = {1};
    return PointerGetDatum(construct_md_array(values.data(), nulls.data(), 1, dimensions, bounds, element_type, length,
                                              by_value, alignment));
}

Datum cents_datum(Cents cents)
{
    char text[cents_text_size];
    return text_datum({text, format_cents(cents, text)});
}

std::string_view Rows::text(uint64 row, int column) const
{
    bool null;
    const Datum value = SPI_getbinval(table_->vals[row], table_->tupdesc, column, &null);
    if (null)
        return {};
    const varlena *packed = PG_DETOAST_DATUM_PACKED(value);
    return {VARDATA_ANY(packed), VARSIZE_ANY_EXHDR(packed)};
}

Uuid Rows::uuid(uint64 row, int column) const
{
    Uuid uuid;
    bool null;
    const Datum value = SPI_getbinval(table_->vals[row], table_->tupdesc, column, &null);
    if (!null)
        memcpy(uuid.bytes.data(), DatumGetUUIDP(value)->data, UUID_LEN);
    return uuid;
}

std::int32_t Rows::holder(uint64 row) const
{
    const int columns = table_->tupdesc->natts;
    return holder_of(DatumGetObjectId(datum(row, columns - 1)), datum(row, columns));
}

void require_ok(const Status &status)
{
    if (status.ok())
        return;
    ereport(ERROR,
            (errcode(status.code == Status::Code::out_of_memory ? ERRCODE_OUT_OF_MEMORY : ERRCODE_INTERNAL_ERROR),
             errmsg("could not fold the batch: %s", status.message)));
}

} // namespace kudos::server

void kudos_install_planner_hook(void)
{
    using namespace kudos::server;
    previous_hook = get_relation_info_hook;
    get_relation_info_hook = relation_info_hook;
    RegisterXactCallback(forget_pin_at_abort, nullptr);
    RegisterSubXactCallback(forget_pin_at_subabort, nullptr);
}
