// Plain arrays in the server's memory contexts: what this layer has instead of containers.
#pragma once

#include "pg.hpp"

#include <new>
#include <span>

#include "../core/batch.hpp"
#include "failpoint.hpp"

namespace kudos::server {

// In the current memory context. The server aligns to 8 bytes only, 128-bit integers need 16.
template <typename T> std::span<T> allocate(std::size_t count)
{
    static_assert(jump_safe<T>);
    failpoint("server_allocation");
    void *raw = MemoryContextAllocHuge(CurrentMemoryContext, (count + 1) * sizeof(T) + alignof(T));
    T *items = reinterpret_cast<T *>(TYPEALIGN(alignof(T), raw));
    for (std::size_t i = 0; i < count; i++)
        new (items + i) T{};
    return {items, count};
}

} // namespace kudos::server
