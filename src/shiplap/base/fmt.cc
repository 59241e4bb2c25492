// Compiles fmt's non-header part once.
//
// As a header-only library, fmt is compiled again by each of the 150 files that format a message,
// which took two thirds of their compile time. Linked from Debian's libfmt.so, it would be a
// dependency of every installed shiplap. Compiled into base it is neither. format.h declares the
// templates below as extern; they are instantiated here.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template dragonbox::decimal_fp<float> dragonbox::to_decimal(float number) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal(double number) noexcept;
template thousands_sep_result<char> thousands_sep_impl(locale_ref locale);
template char decimal_point_impl(locale_ref locale);
template void buffer<char>::append(const char* begin, const char* end);
template void vformat_to(buffer<char>& out, string_view format,
                         basic_format_args<FMT_BUFFER_CONTEXT(char)> arguments, locale_ref locale);

}  // namespace detail
FMT_END_NAMESPACE
