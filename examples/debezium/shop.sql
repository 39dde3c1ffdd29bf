create table customers (id int primary key, name text not null, email text);
create table orders (
  id int primary key,
  customer_id int not null,
  amount numeric(12,2),
  status text,
  placed_at timestamptz default now()
);
insert into customers values (1, 'Ana', 'ana@example.com'), (2, 'Ben', 'ben@example.com');
insert into orders (id, customer_id, amount, status)
  values (1, 1, 19.90, 'open'), (2, 1, 250.00, 'open'), (3, 2, 7.50, 'paid');
