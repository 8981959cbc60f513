bool first_unit();
bool second_unit();

int main() { return first_unit() && second_unit() ? 0 : 1; }
