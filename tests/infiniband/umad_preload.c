/* Lets a Python process use libumad2sim, which ibsim's authors made for programs linked with libumad.
 *
 * CPython opens files with open64, which libumad2sim does not replace. Without libumad in the process, libumad2sim takes
 * the header of a packet for 56 bytes; with ENABLE_PKEY it has 64 (struct ib_user_mad_hdr).
 */
#include <fcntl.h>
#include <stdarg.h>

int open64(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    int mode = va_arg(arguments, int);
    va_end(arguments);
    return open(path, flags, mode);
}

int umad_size(void)
{
    return 64;
}

void *umad_get_mad(void *umad)
{
    return (char *)umad + 64;
}
