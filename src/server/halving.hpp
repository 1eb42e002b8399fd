// Which of many writes cannot be done (contract, section 10, point 6: one stuck thing delays only itself).
#pragma once

#include "pg.hpp"

#include <span>

#include "mark.hpp"
#include "session.hpp"
#include "subtransaction.hpp"

namespace kudos::server {

// More than this, and the trouble is everybody's: then the cycle fails with it.
constexpr std::size_t most_raised = 256;

// Runs write(items); where that raises an error or waits too long for a lock, on halves of them, down to
// the single items that are at fault. Each is handed to refuse(item, cause, error message).
template <typename Item, typename Write, typename Refuse>
void write_what_can_be(const Batch &batch, std::span<const Item> items, Write write, Refuse refuse_item)
{
    ErrorData *error = nullptr;
    const Ended ended = run_in_subtransaction(
        [&] {
            write(items);
            return true;
        },
        &error);
    if (ended == Ended::kept)
        return;
    if (items.size() == 1) {
        if (ended == Ended::raised && refusals(batch).size() >= most_raised)
            ReThrowError(error);
        if (ended == Ended::raised)
            refuse_item(items.front(), Cause::raised, std::string_view(error->message));
        else
            refuse_item(items.front(), Cause::locked, std::string_view());
        return;
    }
    const std::size_t half = items.size() / 2;
    write_what_can_be(batch, items.first(half), write, refuse_item);
    write_what_can_be(batch, items.subspan(half), write, refuse_item);
}

// An optimistic attempt writes all of them at once. A careful one finds out what cannot be written, and
// waits for no lock: it is careful because of one.
template <typename Item, typename Write, typename Refuse>
void write_each(Attempt attempt, const Batch &batch, std::span<const Item> items, Write write, Refuse refuse_item)
{
    if (items.empty())
        return;
    if (attempt == Attempt::optimistic) {
        write(items);
        return;
    }
    const int brief = begin_brief_waits();
    write_what_can_be(batch, items, write, refuse_item);
    end_brief_waits(brief);
}

} // namespace kudos::server
