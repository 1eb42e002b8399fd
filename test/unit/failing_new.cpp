// In a file of its own, or the compiler sees through operator new and warns of the free() beside it.
#include "failing_new.hpp"

#include <cstdlib>
#include <new>

namespace kudos::test {

long allocations_left = never;

} // namespace kudos::test

namespace {

using kudos::test::allocations_left;
using kudos::test::never;

bool fails()
{
    if (allocations_left == never)
        return false;
    if (allocations_left > 0) {
        allocations_left--;
        return false;
    }
    allocations_left = never;
    return true;
}

} // namespace

void *operator new(std::size_t size)
{
    void *memory = fails() ? nullptr : std::malloc(size);
    if (memory == nullptr)
        throw std::bad_alloc();
    return memory;
}

void *operator new(std::size_t size, const std::nothrow_t &) noexcept
{
    return fails() ? nullptr : std::malloc(size);
}

void operator delete(void *memory) noexcept
{
    std::free(memory);
}

void operator delete(void *memory, std::size_t) noexcept
{
    std::free(memory);
}

void operator delete(void *memory, const std::nothrow_t &) noexcept
{
    std::free(memory);
}
