#include "batch.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "floor.hpp"
#include "fold.hpp"

#include "no_server_headers.hpp"

namespace kudos {

class Batch {
  public:
    std::span<const CurrencyPosting> currency;
    std::span<const StatPosting> stats;
    std::vector<Withheld> withheld;

    std::vector<std::int64_t> named_users;
    std::vector<QuarantinedEvent> quarantined;
    std::vector<const CurrencyPosting *> currency_to_fold;
    std::vector<const StatPosting *> stats_to_fold;
    std::vector<std::int64_t> currency_ids;
    std::vector<std::int64_t> stat_ids;
    std::vector<std::int64_t> unfoldable_currency;
    std::vector<std::int64_t> unfoldable_stats;

    Fold folded;
    std::vector<Uuid> workers_with_stats;
    std::vector<TargetWrite> writes[table_count];
    std::vector<FloorAdjustment> floor_adjustments;
    std::vector<Withheld> refusals;

    std::vector<Consumption> consumptions;
    std::vector<Uuid> events;
    std::vector<HoldWrite> hold_writes;
};

namespace {

Status failed(Status::Code code, const char *what) noexcept
{
    Status status;
    status.code = code;
    std::snprintf(status.message, sizeof status.message, "%s", what);
    return status;
}

// Runs one step of core; whatever it throws ends here.
template <typename Step> Status guarded(Step &&step) noexcept
{
    try {
        std::forward<Step>(step)();
        return {};
    } catch (const std::bad_alloc &) {
        return failed(Status::Code::out_of_memory, "out of memory");
    } catch (const std::exception &error) {
        return failed(Status::Code::internal_error, error.what());
    } catch (...) {
        return failed(Status::Code::internal_error, "unknown exception");
    }
}

template <typename T> void sort_unique(std::vector<T> &values)
{
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
}

// "Any" is any column that is written; whether a user exists is another question.
bool matches(const Withheld &held, Table table, int column, const TargetKey &key)
{
    const bool is_written = table != Table::users || column != column::user_existence;
    return held.table == table && held.key == key &&
           (held.column == column || (held.column == column::any && is_written));
}

bool is_withheld(const Batch &batch, Table table, int column, const TargetKey &key)
{
    return std::any_of(batch.withheld.begin(), batch.withheld.end(),
                       [&](const Withheld &held) { return matches(held, table, column, key); });
}

// The row itself, or its whole event.
template <typename Row> bool is_row_withheld(const Batch &batch, Table rows, const Row &row)
{
    return std::any_of(batch.withheld.begin(), batch.withheld.end(), [&](const Withheld &held) {
        const bool by_id = held.key.uuid == Uuid{};
        return held.table == rows && (by_id ? held.key.user == row.id : held.key.uuid == row.event);
    });
}

// A row is folded into all its targets or into none.
bool is_withheld(const Batch &batch, const StatPosting &row)
{
    if (batch.withheld.empty())
        return false;
    bool held = is_row_withheld(batch, Table::stat_rows, row) ||
                (row.has_user && is_withheld(batch, Table::users, column::user_existence, TargetKey{.user = row.user}));
    for_each_target(row, [&](Table table, int column, const TargetKey &key) {
        held = held || is_withheld(batch, table, column, key);
    });
    return held;
}

// A hold is fed by the debits that name it, and by every row of its event: the last one releases it.
bool feeds_hold(const CurrencyPosting &row, const Withheld &held)
{
    return held.table == Table::reservations && ((row.names_reservation && row.reservation == held.key.action) ||
                                                 (held.key.uuid != Uuid{} && row.event == held.key.uuid));
}

bool is_withheld(const Batch &batch, const CurrencyPosting &row)
{
    if (batch.withheld.empty())
        return false;
    return is_row_withheld(batch, Table::ledger_rows, row) ||
           is_withheld(batch, Table::users, currency_column(row), TargetKey{.user = row.user}) ||
           std::any_of(batch.withheld.begin(), batch.withheld.end(),
                       [&](const Withheld &held) { return feeds_hold(row, held); });
}

// The whole event is set aside, with the reason of its lowest invalid row (claims come by id).
void quarantine_events(Batch &batch, std::span<const std::int64_t> existing_users, const ProjectionLimits &limits)
{
    std::map<Uuid, Reason> events;
    for (const StatPosting &row : batch.stats) {
        const bool unknown_existence =
            row.has_user && is_withheld(batch, Table::users, column::user_existence, TargetKey{.user = row.user});
        if (unknown_existence || is_row_withheld(batch, Table::stat_rows, row))
            continue;
        const Reason reason = validate(row, existing_users, limits);
        if (reason != Reason::none)
            events.try_emplace(row.event, reason);
    }
    for (const auto &[event, reason] : events)
        batch.quarantined.push_back({event, reason});
}

QuarantinedEvent *find_quarantined(Batch &batch, const Uuid &event)
{
    const auto at = std::lower_bound(batch.quarantined.begin(), batch.quarantined.end(), event,
                                     [](const QuarantinedEvent &a, const Uuid &b) { return a.event < b; });
    return at != batch.quarantined.end() && at->event == event ? &*at : nullptr;
}

void choose_rows(Batch &batch)
{
    for (const CurrencyPosting &row : batch.currency) {
        if (!row.foldable)
            batch.unfoldable_currency.push_back(row.id);
        else if (!is_withheld(batch, row))
            batch.currency_to_fold.push_back(&row);
    }
    for (const StatPosting &row : batch.stats) {
        if (QuarantinedEvent *event = find_quarantined(batch, row.event); event != nullptr)
            event->claimed_rows++;
        else if (!row.foldable)
            batch.unfoldable_stats.push_back(row.id);
        else if (!is_withheld(batch, row))
            batch.stats_to_fold.push_back(&row);
    }
    for (const CurrencyPosting *row : batch.currency_to_fold)
        batch.currency_ids.push_back(row->id);
    for (const StatPosting *row : batch.stats_to_fold)
        batch.stat_ids.push_back(row->id);
}

// What becomes of a target that is not there: stats and records are inserted, workers and teams may
// have been deleted and are skipped, a user must exist.
enum class Absent : std::uint8_t { insert, skip, refuse };

Absent when_absent(Table table)
{
    switch (table) {
    case Table::users:
    case Table::reservations:
    case Table::ledger_rows:
    case Table::stat_rows:
        return Absent::refuse;
    case Table::workers:
    case Table::teams:
        return Absent::skip;
    default:
        return Absent::insert;
    }
}

Withheld refusal(Table table, int column, Cause cause, const TargetKey &key)
{
    return {.table = table, .column = static_cast<std::int8_t>(column), .cause = cause, .key = key};
}

// Lifts the exact balance to the floor; the difference becomes a row of its own. False: no row of the
// archive can hold it.
bool lift_to_floor(Batch &batch, const TargetDelta &delta, const TargetState &state, Cents &exact)
{
    const Cents floor = floor_of(state.oauth_id);
    if (exact >= floor)
        return true;
    const Cents created = floor - exact;
    if (created > highest_posting)
        return false;
    batch.floor_adjustments.push_back({delta.key.user, created});
    exact = floor;
    return true;
}

void settle_target(Batch &batch, Table table, std::span<const ColumnType> types, std::uint32_t index,
                   const TargetState &state)
{
    const TargetDelta &delta = batch.folded.of(table)[index];
    if (!state.present && when_absent(table) == Absent::skip)
        return;
    if (!state.present && when_absent(table) == Absent::refuse) {
        batch.refusals.push_back(refusal(table, column::any, Cause::missing, delta.key));
        return;
    }
    if (!state.readable) {
        batch.refusals.push_back(refusal(table, column::any, Cause::unreadable, delta.key));
        return;
    }

    TargetWrite write;
    write.index = index;
    write.present = state.present;
    for (std::size_t c = 0; c < types.size(); c++) {
        const Cents before = state.shown[c] + state.remainder[c];
        Cents exact = before + delta.delta[c];
        const bool has_floor = table == Table::users && c == column::user_kudos && delta.fed[c];
        if (has_floor && !lift_to_floor(batch, delta, state, exact)) {
            batch.refusals.push_back(refusal(table, static_cast<int>(c), Cause::overflow, delta.key));
            return;
        }
        // A zero delta leaves the value untouched, whatever it shows.
        const Settled settled = state.present && exact == before
                                    ? Settled{.fits = true, .shown = state.shown[c], .remainder = state.remainder[c]}
                                    : settle(types[c], exact);
        if (!settled.fits) {
            batch.refusals.push_back(refusal(table, static_cast<int>(c), Cause::overflow, delta.key));
            return;
        }
        write.shown[c] = settled.shown;
        write.step[c] = settled.shown - state.shown[c];
        write.remainder[c] = settled.remainder;
        write.value_changed = write.value_changed || write.step[c] != 0;
        write.remainder_changed = write.remainder_changed || settled.remainder != state.remainder[c];
    }
    write.last_active = state.last_active;
    if (delta.has_activity && delta.activity > state.last_active) {
        write.last_active = delta.activity;
        write.touched = true;
        write.value_changed = true;
    }
    if (!state.present || write.value_changed || write.remainder_changed)
        batch.writes[static_cast<int>(table)].push_back(write);
}

} // namespace

std::string_view cause_text(Cause cause) noexcept
{
    switch (cause) {
    case Cause::overflow:
        return "overflow";
    case Cause::unreadable:
        return "unreadable";
    case Cause::missing:
        return "missing";
    case Cause::not_written:
        return "not written";
    case Cause::locked:
        return "locked";
    case Cause::raised:
        return "raised";
    }
    return "";
}

Status open_batch(std::span<const CurrencyPosting> currency, std::span<const StatPosting> stats,
                  std::span<const Withheld> withheld, Batch **opened) noexcept
{
    *opened = nullptr;
    Batch *batch = new (std::nothrow) Batch;
    if (batch == nullptr)
        return failed(Status::Code::out_of_memory, "out of memory");
    const Status status = guarded([&] {
        batch->currency = currency;
        batch->stats = stats;
        batch->withheld.assign(withheld.begin(), withheld.end());
        for (const StatPosting &row : stats)
            if (row.has_user)
                batch->named_users.push_back(row.user);
        sort_unique(batch->named_users);
    });
    if (status.ok())
        *opened = batch;
    else
        delete batch;
    return status;
}

void close_batch(Batch *batch) noexcept
{
    delete batch;
}

std::span<const std::int64_t> named_users(const Batch &batch) noexcept
{
    return batch.named_users;
}

Status validate_batch(Batch &batch, std::span<const std::int64_t> existing_users,
                      const ProjectionLimits &limits) noexcept
{
    return guarded([&] {
        quarantine_events(batch, existing_users, limits);
        choose_rows(batch);
    });
}

std::span<const QuarantinedEvent> quarantined_events(const Batch &batch) noexcept
{
    return batch.quarantined;
}

std::span<const std::int64_t> currency_ids(const Batch &batch) noexcept
{
    return batch.currency_ids;
}

std::span<const std::int64_t> stat_ids(const Batch &batch) noexcept
{
    return batch.stat_ids;
}

std::span<const std::int64_t> unfoldable_currency_ids(const Batch &batch) noexcept
{
    return batch.unfoldable_currency;
}

std::span<const std::int64_t> unfoldable_stat_ids(const Batch &batch) noexcept
{
    return batch.unfoldable_stats;
}

Status fold_batch(Batch &batch) noexcept
{
    return guarded([&] {
        batch.folded = fold(batch.currency_to_fold, batch.stats_to_fold);
        batch.consumptions = consumptions(batch.currency_to_fold);
        batch.events = events_of(batch.currency_to_fold);
        for (const TargetDelta &delta : batch.folded.of(Table::worker_stats))
            batch.workers_with_stats.push_back(delta.key.uuid);
        sort_unique(batch.workers_with_stats);
    });
}

std::span<const TargetDelta> deltas(const Batch &batch, Table table) noexcept
{
    return batch.folded.of(table);
}

std::span<const Uuid> workers_with_stats(const Batch &batch) noexcept
{
    return batch.workers_with_stats;
}

Status skip_missing_workers(Batch &batch, std::span<const Uuid> existing_workers) noexcept
{
    return guarded([&] {
        std::vector<Uuid> existing(existing_workers.begin(), existing_workers.end());
        sort_unique(existing);
        std::erase_if(batch.folded.of(Table::worker_stats), [&](const TargetDelta &delta) {
            return !std::binary_search(existing.begin(), existing.end(), delta.key.uuid);
        });
    });
}

Status settle_table(Batch &batch, Table table, std::span<const ColumnType> types,
                    std::span<const TargetState> states) noexcept
{
    return guarded([&] {
        for (std::uint32_t i = 0; i < states.size(); i++)
            settle_target(batch, table, types, i, states[i]);
    });
}

std::span<const TargetWrite> writes(const Batch &batch, Table table) noexcept
{
    return batch.writes[static_cast<int>(table)];
}

std::span<const FloorAdjustment> floor_adjustments(const Batch &batch) noexcept
{
    return batch.floor_adjustments;
}

Status refuse(Batch &batch, const Withheld &refusal) noexcept
{
    return guarded([&] { batch.refusals.push_back(refusal); });
}

std::span<const Withheld> refusals(const Batch &batch) noexcept
{
    return batch.refusals;
}

std::span<const Consumption> hold_consumptions(const Batch &batch) noexcept
{
    return batch.consumptions;
}

std::span<const Uuid> folded_events(const Batch &batch) noexcept
{
    return batch.events;
}

Status settle_batch_holds(Batch &batch, std::span<const HoldState> holds, std::span<const Uuid> pending_events) noexcept
{
    return guarded([&] {
        std::vector<Uuid> pending(pending_events.begin(), pending_events.end());
        sort_unique(pending);
        batch.hold_writes = settle_holds(holds, batch.consumptions, batch.events, pending);
    });
}

std::span<const HoldWrite> hold_writes(const Batch &batch) noexcept
{
    return batch.hold_writes;
}

Status account_floor(std::string_view oauth_id, Cents *floor) noexcept
{
    return guarded([&] { *floor = floor_of(oauth_id); });
}

} // namespace kudos
