update orders set status = 'paid' where id = 1;
delete from orders where id = 3;
insert into customers values (3, 'Cleo', 'cleo@example.com');
-- a new column and a new table need no change of the pipeline
alter table customers add column country text;
update customers set country = 'DE' where id = 2;
create table refunds (id int primary key, order_id int, reason text);
insert into refunds values (1, 2, 'too large');
