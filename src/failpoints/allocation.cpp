// Every allocation of the core passes here in a test build: the linker puts __wrap_ before operator new.
#include <cstddef>
#include <new>

extern "C" {
bool kudos_allocation_fails();
void *__real__Znwm(std::size_t size);
void *__real__ZnwmRKSt9nothrow_t(std::size_t size, const std::nothrow_t &tag);

void *__wrap__Znwm(std::size_t size)
{
    if (kudos_allocation_fails())
        throw std::bad_alloc();
    return __real__Znwm(size);
}

void *__wrap__ZnwmRKSt9nothrow_t(std::size_t size, const std::nothrow_t &tag)
{
    return kudos_allocation_fails() ? nullptr : __real__ZnwmRKSt9nothrow_t(size, tag);
}
}
