# What Doxygen sees of each file, line by line. Line numbers stay.

# Nothing of detail.
/^namespace (.*::)?detail \{$/,/^\}  \/\/ namespace (.*::)?detail$/s/.*//

# Macros of the library alone.
s/^#define TURNWISE_VECTOR_.*//

# pass@k is no command.
s/([a-z])@([kpN])\b/\1\\@\2/g

# Links to folders and sources of the repository, which the site does not have: their text alone.
s/\[([^]]*)\]\((\.\.\/)?(examples|benchmarks|include|tests)\/[a-z_\/]*(\.hpp)?\)/\1/g

# Links to a section: to its page.
s/(\]\((docs\/)?[a-z_]+\.md)#[^)]*\)/\1)/g

# Every record and every loss policy has these: one comment for all.
s/^.* operator==\(.*\) = default;$//
s@^( *)(.* operator\+=\()@\1/** Adds the record of another part. */ \2@
s@^( *)(void check\(\) const \{)@\1/** Throws precondition_error unless the options make sense. */ \2@
s@^( *)(.* operator\(\)\(loss_token<F> const&)@\1/** Loss and slope of one token. */ \2@
s@^( *)(.* turn_log_ratio\(F)@\1/** What a token adds to the mean log ratio of its turn. */ \2@
s@^( *)(static constexpr bool uses_selection )@\1/** Reads loss_inputs::selected. */ \2@
